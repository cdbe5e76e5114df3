"""From numbers to colours, in one way for the page and for the pictures of a freeze.

Legend: L layers, H query heads, P blocks of the pooled attention maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from saf_titan.report.heads import Metric

COLORS = tuple(mpl.colors.to_hex(color) for color in mpl.colormaps["viridis"](np.linspace(0, 1, 64)))
"""From the lowest value to the highest."""
UNKNOWN = "#8b93a0"
"""The colour of a head whose value is not known; its index is `len(COLORS)`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The range of a metric's colours."""

    low: float
    high: float
    is_log: bool


def color_index(metric: Metric) -> tuple[NDArray[np.int64], Scale]:
    """Return the index of each head's colour, (L, H), and the scale.

    Shares have the scale from 0 to 1. Other metrics go from their lowest to their highest value, on a logarithmic scale
    if all are positive and the highest is more than ten times the lowest.
    """
    values = metric.values_LH.double().cpu().numpy()
    known = values[np.isfinite(values)]
    low, high = (0.0, 1.0) if metric.is_share else (known.min(), known.max()) if len(known) else (0.0, 0.0)
    is_log = not metric.is_share and low > 0 and high > 10 * low
    scale = np.log if is_log else np.asarray
    span = scale(high) - scale(low)
    with np.errstate(invalid="ignore", divide="ignore"):
        place = (scale(values) - scale(low)) / span if span > 0 else np.where(np.isfinite(values), 0.0, np.nan)
    is_known = np.isfinite(place)
    index = np.where(is_known, np.rint(np.where(is_known, place, 0).clip(0, 1) * (len(COLORS) - 1)), len(COLORS))
    return index.astype(np.int64), Scale(low=float(low), high=float(high), is_log=bool(is_log))


def map_index(maps: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """Return the index of the colour of each block of pooled attention maps (P, P), -1 in the future.

    All maps share one square-root scale, so that they can be compared. Its last colour stands for the 98 % quantile:
    the first rows have few keys and would darken all others.
    """
    arrays = [np.nan_to_num(map_PP.double().cpu().numpy()) for map_PP in maps]
    brightest = max((float(np.quantile(a[np.tril_indices(len(a))], 0.98)) for a in arrays), default=0.0) or 1.0
    indices = [np.rint(np.sqrt((a / brightest).clip(0, 1)) * (len(COLORS) - 1)).astype(np.int64) for a in arrays]
    return [np.where(np.tril(np.ones(a.shape, dtype=bool)), a, -1) for a in indices]
