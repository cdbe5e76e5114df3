"""Equal weight on every key, as a control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import CompactContent

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.heads.names import Head
    from saf_titan.saf.calibrate.calibration import Calibration


def _parameters(calibration: Calibration, heads: Sequence[Head], seed: int) -> tuple[Tensor, Tensor]:
    import torch

    zeros_NT = torch.zeros(len(heads), calibration.seq_len, dtype=torch.float64)
    return zeros_NT, zeros_NT.clone()


CONTENT = CompactContent(
    name="uniform",
    doc="equal weight on every key up to the query",
    replacement="equal attention to all earlier tokens, as a control",
    parameters=_parameters,
)
