"""The fit with alpha = 0, as a control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import CompactContent

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.heads.names import Head
    from saf_titan.saf.calibrate.calibration import Calibration


def _parameters(calibration: Calibration, heads: Sequence[Head], seed: int) -> tuple[Tensor, Tensor]:
    from saf_titan.saf.fit.fit import fit_heads

    fit = fit_heads(calibration, heads, columns=False)
    return fit.alpha_HT, fit.rho_HT


CONTENT = CompactContent(
    name="distance",
    doc="the best fit that depends on the distance alone (alpha = 0)",
    replacement="a fixed pattern that depends on the distance alone, as a control",
    parameters=_parameters,
)
