"""Pictures of a freeze as arrays of pixels, for TensorBoard and Weights & Biases: the maps of the report's heads.

Legend: L layers, H query heads, P blocks of the pooled attention maps, Y and X pixels.
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from saf_titan.heads.names import head_name
from saf_titan.report.colors import COLORS, UNKNOWN, color_index, map_index
from saf_titan.report.heads import HeadMaps

_CELL, _GAP = 18, 2
"""Pixels of a head, and between two heads."""
_ZOOM = 4
"""Pixels of a block of an attention map."""

_RGB = np.array([mpl.colors.to_rgb(color) for color in (*COLORS, UNKNOWN)]) * 255
_PALETTE_C3 = np.rint(_RGB).astype(np.uint8)


def freeze_images(maps: HeadMaps, *, num_patterns: int = 4) -> dict[str, NDArray[np.uint8]]:
    """Return pictures (Y, X, 3) by name: a map of the heads for each metric, and static heads before and after.

    Heads that were made static carry a white square. Of these, `num_patterns` are shown, those of the lowest rank
    first: mean attention at the left, the pattern at the right, in one range of colours.
    """
    images = {f"heads/{metric.name}": _grid(maps, color_index(metric)[0]) for metric in maps.metrics}
    static = [slot for slot, mark in maps.marks.items() if mark == "static" and len(maps.pictures[slot].maps) == 2]
    for slot in static[:num_patterns]:
        pair = [picture for _, picture in maps.pictures[slot].maps]
        drawn = map_index(pair)
        images[f"patterns/{head_name(*slot)}"] = np.concatenate([_map(index_PP) for index_PP in drawn], 1)
    return images


def _grid(maps: HeadMaps, index_LH: NDArray[np.int64]) -> NDArray[np.uint8]:
    num_layers, num_heads = index_LH.shape
    step = _CELL + _GAP
    image = np.full((num_layers * step + _GAP, num_heads * step + _GAP, 3), 255, np.uint8)
    for layer in range(num_layers):
        for head in range(num_heads):
            y, x = layer * step + _GAP, head * step + _GAP
            image[y : y + _CELL, x : x + _CELL] = _PALETTE_C3[index_LH[layer, head]]
            if maps.marks.get((layer, head)) == "static":
                third = _CELL // 3
                image[y + third : y + 2 * third, x + third : x + 2 * third] = 255
    return image


def _map(index_PP: NDArray[np.int64]) -> NDArray[np.uint8]:
    """One attention map; the future, which has the index -1, is white."""
    image = np.where(index_PP[..., None] >= 0, _PALETTE_C3[index_PP], 255).astype(np.uint8)
    return np.pad(image.repeat(_ZOOM, 0).repeat(_ZOOM, 1), ((0, 0), (0, _ZOOM), (0, 0)), constant_values=255)
