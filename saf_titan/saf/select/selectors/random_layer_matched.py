"""Random heads, with as many in each layer as the published selector would choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from saf_titan.saf.select.selector import Ranking, SelectionSettings, Selector

if TYPE_CHECKING:
    from saf_titan.saf.calibrate.calibration import Calibration


def _rank(calibration: Calibration, settings: SelectionSettings) -> Ranking:
    from saf_titan.saf.select.ranking import ranking

    return replace(
        ranking(calibration, "random", settings),
        name="random_layer_matched",
        matched=ranking(calibration, "variance", settings),
    )


SELECTOR = Selector(
    name="random_layer_matched",
    group="comparison",
    doc="a random order with as many heads in each layer as `variance` would choose",
    reason="they were drawn at random, as many in each layer as variance would choose",
    rank=_rank,
    draws=True,
)
