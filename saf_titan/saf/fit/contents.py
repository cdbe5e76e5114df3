"""What a static head attends to: the fit to its own mean, or a control in its place.

The contents of `content_parameters` are compact (alpha, rho); those that need a T x T matrix are in `dense.py`.

Legend: N heads, T time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.compact import fix_gauge
from saf_titan.saf.fit.dense_memory import DENSE_CONTENTS
from saf_titan.saf.fit.fit import fit_compact

PRUNE = "prune"
"""No pattern at all: the head is removed, which freezing is compared with."""

COMPACT_CONTENTS = ("mean", "distance", "uniform", "random")
CONTENTS = (*COMPACT_CONTENTS, *DENSE_CONTENTS, PRUNE)


def content_parameters(
    content: str, calibration: Calibration, heads: Sequence[tuple[int, int]], *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """alpha_NT and rho_NT, float64, of a pattern content for the given (layer, head) slots.

    content:
        "mean": the compact pattern nearest to the head's mean attention.
        "distance": the same with alpha = 0, a function of the distance alone.
        "uniform": equal weight on every key up to the query.
        "random": alpha, rho ~ N(0, 1), structured noise. A slot's noise depends on `seed` and its place in the model
            alone, not on the rate or on which other heads are static.
    """
    N, T = len(heads), calibration.seq_len
    if content in ("mean", "distance"):
        index = tuple(torch.tensor(heads).T)
        fit = fit_compact(
            calibration.column_mass_LHT[index],
            calibration.diagonal_mass_LHT[index],
            calibration.neg_entropy_LH[index],
            columns=content == "mean",
        )
        return fit.alpha_HT, fit.rho_HT
    if content == "uniform":
        return torch.zeros(N, T, dtype=torch.float64), torch.zeros(N, T, dtype=torch.float64)
    if content == "random":
        parameters = [_noise(T, seed, layer * calibration.num_heads + head) for layer, head in heads]
        alpha_NT, rho_NT = torch.stack(parameters).unbind(1)
        return fix_gauge(alpha_NT, rho_NT)
    raise ValueError(f"{content!r} is no compact pattern content: choose {', '.join(COMPACT_CONTENTS)}")


def slot_generator(seed: int, slot: int) -> torch.Generator:
    """Random numbers of one head: `slot` is its number in the model, layer * H + head."""
    # as many bits as a generator takes; of the seed the low ones count
    return torch.Generator().manual_seed(((seed << 20) + slot) % 2**63)


def _noise(T: int, seed: int, slot: int) -> Tensor:
    return torch.randn(2, T, generator=slot_generator(seed, slot), dtype=torch.float64)
