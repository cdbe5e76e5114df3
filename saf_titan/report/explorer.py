"""The map of all heads, layers by heads: one metric at a time, and the panel of a head on click.

`report.js` makes it interactive. Without JavaScript, and on paper, the page shows the first metric with its marks.

Legend: L layers, H query heads, P blocks of the pooled attention maps.
"""

from __future__ import annotations

import base64
import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saf_titan.fields.json_values import without_nan
from saf_titan.heads.names import head_name
from saf_titan.report.colors import COLORS, UNKNOWN, color_index, map_index
from saf_titan.report.heads import Curve, HeadMaps, HeadPictures, Mark, Metric
from saf_titan.report.markup import json_script

_SIGNS: dict[Mark, str] = {"static": "●", "skipped": "✕", "static before": "■"}
_WORDS: dict[Mark, str] = {"static": "made static", "skipped": "skipped", "static before": "static already"}


def head_explorer(maps: HeadMaps, label: str) -> str:
    """Return the HTML of the map; `label` names it for screen readers."""
    metrics = [_drawn(metric) for metric in maps.metrics]
    options = "".join(f'<option value="{i}">{escape(drawn["name"])}</option>' for i, drawn in enumerate(metrics))
    data = {
        "colors": [*COLORS, UNKNOWN],
        "metrics": metrics,
        "first": _first(maps),
        "heads": {head_name(*slot): _panel(pictures) for slot, pictures in maps.pictures.items()},
    }
    first = metrics[0]
    signs = "".join(
        f"<span><i>{sign}</i> {_WORDS[mark]}</span>" for mark, sign in _SIGNS.items() if mark in maps.marks.values()
    )
    return (
        '<div class="explorer"><div class="map">'
        f'<label>Colour: <select aria-label="metric of {escape(label)}">{options}</select></label>'
        f'<p class="meaning">{escape(first["meaning"])}</p>'
        f"{_grid(maps, first, label)}"
        f'<div class="scale{"" if first["high"] else " flat"}"><span>{escape(first["low"])}</span><i></i>'
        f"<span>{escape(first['high'])}</span></div>"
        f'<p class="signs">{signs}</p>'
        '<p class="reading" role="status">Point at a head, or go there with the arrow keys, to read its value; click '
        "for its attention.</p>"
        '</div><div class="panel" aria-live="polite"></div>'
        f"{json_script(data)}</div>"
    )


def _first(maps: HeadMaps) -> str:
    """Return the name of the head whose panel is open at first: one that was made static, else any with a panel."""
    by_mark = [slot for mark in _SIGNS for slot, of_slot in maps.marks.items() if of_slot == mark]
    return next((head_name(*slot) for slot in (*by_mark, *maps.pictures) if slot in maps.pictures), "")


def _grid(maps: HeadMaps, drawn: dict[str, Any], label: str) -> str:
    num_layers, num_heads = maps.shape
    head = "".join(f'<th scope="col">{h}</th>' for h in range(num_heads))
    rows = []
    for layer in range(num_layers):
        cells = []
        for h in range(num_heads):
            place = layer * num_heads + h
            mark = maps.marks.get((layer, h))
            color = (*COLORS, UNKNOWN)[drawn["color"][place]]
            words = f", {_WORDS[mark]}" if mark else ""
            name = head_name(layer, h)
            cells.append(
                f'<td><button type="button" tabindex="{-1 if place else 0}" data-head="{name}" data-mark="{words}" '
                f'style="background:{color}" aria-label="{name}: {escape(drawn["text"][place])}{words}">'
                f"{_SIGNS[mark] if mark else ''}</button></td>"
            )
        rows.append(f'<tr><th scope="row">{layer}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="grid"><table role="grid" aria-label="{escape(label)}: layers by heads"><thead><tr>'
        f'<th scope="col">layer</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _drawn(metric: Metric) -> dict[str, Any]:
    """Return a metric as values of JSON for the page: for each head the index of its colour, and its value as text."""
    index_LH, scale = color_index(metric)
    same = scale.low if bool(metric.values_LH.isfinite().any()) else math.nan
    meaning = f"{metric.meaning[:1].upper()}{metric.meaning[1:]}{' (logarithmic scale)' if scale.is_log else ''}."
    return {
        "name": metric.name,
        "meaning": meaning,
        # a single number where all heads have the same value
        "low": _number(scale.low) if scale.low < scale.high else f"{_number(same)} for every head",
        "high": _number(scale.high) if scale.low < scale.high else "",
        "color": index_LH.flatten().tolist(),
        "text": [f"{metric.name} {_number(value)}" for value in metric.values_LH.double().flatten().tolist()],
    }


def _panel(pictures: HeadPictures) -> dict[str, Any]:
    indices = map_index([map_PP for _, map_PP in pictures.maps])
    return {
        "notes": pictures.notes,
        "maps": [
            {"name": name, "size": len(index_PP), "cells": _cells(index_PP)}
            for (name, _), index_PP in zip(pictures.maps, indices, strict=True)
        ],
        "curves": [_points(curve) for curve in pictures.curves],
    }


def _cells(index_PP: NDArray[np.int64]) -> str:
    """Return the causal half of a map in base64, row by row: one byte for each block, the index of its colour."""
    return base64.b64encode(index_PP[np.tril_indices(len(index_PP))].astype(np.uint8).tobytes()).decode()


def _points(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "axis": curve.axis,
        "x": [float(f"{x:.4g}") for x in curve.x_N.tolist()],
        "y": without_nan([float(f"{y:.4g}") for y in curve.y_N.tolist()]),
    }


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return f"{value:.3g}"
