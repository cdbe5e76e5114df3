"""Heads whose query and key weights have the smallest gradients; see `gradient_ema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saf_titan.saf.select.selector import Selector

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.saf.select.probe import Probe


def _measure(probe: Probe[Any]) -> Mapping[str, Tensor]:
    if probe.gradient is None:
        raise ValueError('the selector "qk_gradient" needs an average of the gradients of the steps before the freeze')
    return {"qk_gradient": probe.gradient.scores(probe.calibration.live_LH)}


SELECTOR = Selector(
    name="qk_gradient",
    group="training",
    doc="moving average of the gradients of the head's query and key weights over the steps before the freeze",
    reason="their queries and keys were learning least",
    measure=_measure,
    watches_gradients=True,
)
