"""Does attention look at the tokens that matter? Maps and shares over examples with known relevant tokens.

Every function takes two numbers for each example: the attention mass on its relevant tokens and the probability of its
right label. How attention is averaged over heads, and which row is the query, is for the caller to say.

Source: arXiv 2608.06776. The thresholds of that paper are not known to us; here they are parameters, 0.5 by default.

Legend: N examples, Q thresholds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def relevant_mass(attention_NT: ArrayLike, relevant_NT: ArrayLike) -> NDArray[np.float64]:
    """Sum the attention on the relevant tokens of each example.

    Args:
        attention_NT: attention of the prediction's row, each row summing to 1.
        relevant_NT: bool, true for relevant tokens.

    Returns the masses (N,) in [0, 1]. Raises ValueError for shapes that differ.
    """
    attention, relevant = np.asarray(attention_NT, dtype=np.float64), np.asarray(relevant_NT)
    if attention.shape != relevant.shape or attention.ndim != 2:
        raise ValueError(f"attention and relevance must both be (N, T), got {attention.shape} and {relevant.shape}")
    return np.where(relevant.astype(bool), attention, 0.0).sum(1)


def dtap(mass_N: ArrayLike, probability_N: ArrayLike, *, bins: int = 10) -> NDArray[np.float64]:
    """Return the DTAP map: the share of examples in each cell of attention mass against probability.

    Args:
        mass_N: attention mass on relevant tokens, in [0, 1].
        probability_N: probability of the right label, in [0, 1].
        bins: cells of each axis.

    Returns (bins, bins), which sums to 1: the first axis is the mass, the second the probability, both ascending, so
    the last cell of both is good. A value on a border belongs to the cell above it, and 1 to the last cell.
    """
    mass, probability = _pairs(mass_N, probability_N)
    # rounding may carry a sum of probabilities a hair beyond 1
    counts, _, _ = np.histogram2d(mass.clip(0, 1), probability.clip(0, 1), bins=bins, range=[[0, 1], [0, 1]])
    return counts / len(mass)


def attention_confidence(mass_N: ArrayLike, threshold: float = 0.5) -> float:
    """Return AC, the share of examples whose mass on relevant tokens is at least `threshold`."""
    return float((np.asarray(mass_N) >= threshold).mean())


def attention_and_model_confidence(
    mass_N: ArrayLike, probability_N: ArrayLike, threshold: float = 0.5, probability_threshold: float = 0.5
) -> float:
    """Return ACMC, the share of examples with both the mass and the probability at least at their thresholds."""
    mass, probability = _pairs(mass_N, probability_N)
    return float(((mass >= threshold) & (probability >= probability_threshold)).mean())


def confidence_curve(mass_N: ArrayLike, thresholds_Q: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return AC at every threshold, (Q,); by default at 0, 0.01, ..., 1. The curve falls from 1."""
    thresholds = np.linspace(0, 1, 101) if thresholds_Q is None else np.asarray(thresholds_Q, dtype=np.float64)
    mass = np.sort(np.asarray(mass_N, dtype=np.float64))
    return 1 - np.searchsorted(mass, thresholds, side="left") / len(mass)


def _pairs(mass_N: ArrayLike, probability_N: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mass, probability = np.asarray(mass_N, dtype=np.float64), np.asarray(probability_N, dtype=np.float64)
    if mass.shape != probability.shape or mass.ndim != 1 or not len(mass):
        raise ValueError(f"mass and probability must both be (N,), N >= 1, got {mass.shape} and {probability.shape}")
    for name, values in (("mass", mass), ("probability", probability)):
        if not ((values > -1e-6) & (values < 1 + 1e-6)).all():
            raise ValueError(f"the {name} of each example must be in [0, 1]")
    return mass, probability
