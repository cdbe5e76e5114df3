"""Random alpha and rho, as a control."""

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

    from saf_titan.saf.fit.compact import fix_gauge
    from saf_titan.saf.fit.slots import slot_generator

    def noise(layer: int, head: int) -> Tensor:
        # depends on the seed and the place in the model, not on the rate or on which other heads are static
        generator = slot_generator(seed, layer * calibration.num_heads + head)
        return torch.randn(2, calibration.seq_len, generator=generator, dtype=torch.float64)

    alpha_NT, rho_NT = torch.stack([noise(layer, head) for layer, head in heads]).unbind(1)
    return fix_gauge(alpha_NT, rho_NT)


CONTENT = CompactContent(
    name="random",
    doc="alpha and rho drawn from N(0, 1), a fixed draw for each place in the model",
    replacement="a random fixed pattern, as a control",
    parameters=_parameters,
    draws=True,
)
