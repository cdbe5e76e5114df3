"""Exactly the heads that the user names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saf_titan.heads.names import parse_heads
from saf_titan.saf.select.selector import Ranking, SelectionSettings, Selector

if TYPE_CHECKING:
    from saf_titan.saf.calibrate.calibration import Calibration


def _rank(calibration: Calibration, settings: SelectionSettings) -> Ranking:
    from saf_titan.saf.select.ranking import measured_scores

    return Ranking(
        "list", measured_scores(calibration, "variance"), parse_heads(",".join(settings.heads)), is_list=True
    )


SELECTOR = Selector(
    name="list",
    group="comparison",
    doc="exactly the heads named in `heads`",
    reason="the configuration names them",
    rank=_rank,
)
