"""Heads at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saf_titan.saf.select.selector import Ranking, SelectionSettings, Selector

if TYPE_CHECKING:
    from saf_titan.saf.calibrate.calibration import Calibration


def _rank(calibration: Calibration, settings: SelectionSettings) -> Ranking:
    from saf_titan.saf.select.ranking import random_scores, rank_heads

    scores_LH = random_scores(calibration, settings.seed)
    return Ranking("random", scores_LH, rank_heads(scores_LH, exclude_layers=settings.exclude_layers))


SELECTOR = Selector(
    name="random",
    group="comparison",
    doc="a random order, drawn with `seed`",
    reason="they were drawn at random, as a control",
    rank=_rank,
    draws=True,
)
