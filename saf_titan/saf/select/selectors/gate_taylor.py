"""The published control of head pruning; see `gate_taylor.py` beside this folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saf_titan.saf.select.selector import Selector

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.saf.select.probe import Probe


def _measure(probe: Probe[Any]) -> Mapping[str, Tensor]:
    import torch

    from saf_titan.saf.select.gate_taylor import gate_taylor_scores

    with torch.enable_grad():
        score_LH = gate_taylor_scores(probe.attentions, probe.batches, probe.sequence_losses, group=probe.group)
    probe.model.zero_grad()
    return {"gate_taylor": score_LH}


SELECTOR = Selector(
    name="gate_taylor",
    group="loss",
    doc="change of the loss when the head's output is scaled a little; made for pruning",
    reason="the loss depended least on their output",
    measure=_measure,
)
