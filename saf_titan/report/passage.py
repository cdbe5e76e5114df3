"""A passage of text in which each token is coloured by its attention from, and contribution to, a chosen token.

`report.css` turns the share of a token into its colour; `report.js` changes the shares when another token is chosen.
Without JavaScript the page shows the text and the shares of its last token.

Legend: T tokens.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from saf_titan.report.markup import json_script

_SCALE = 1000
"""Values are stored in thousandths, as 16-bit integers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What the tokens of a passage give to each other in one head, or in one layer."""

    name: str
    """Name of the head or layer, for example "L3H5" or "layer 3"."""
    by_measure: tuple[tuple[str, Tensor], ...]
    """Name and values (T, T) of each measure: row i holds what tokens j <= i give to token i, and sums to 1."""


def passage(tokens: Sequence[str], weights: Sequence[Weights], label: str) -> str:
    """Return the HTML of a passage.

    Args:
        tokens: the text of each of T tokens.
        weights: at least one, all with the same measures.
        label: names the passage for screen readers.

    Raises:
        ValueError: a matrix is not (T, T), or the entries have different measures.
    """
    measures = [name for name, _ in weights[0].by_measure]
    for entry in weights:
        if [name for name, _ in entry.by_measure] != measures:
            raise ValueError(f"{entry.name} has other measures than {weights[0].name}: {entry.by_measure}")
        for name, values_TT in entry.by_measure:
            if values_TT.shape != (len(tokens), len(tokens)):
                raise ValueError(
                    f"{entry.name}, {name}: expected ({len(tokens)}, {len(tokens)}), got {values_TT.shape}"
                )
    options = "".join(f'<option value="{i}">{escape(entry.name)}</option>' for i, entry in enumerate(weights))
    data: dict[str, Any] = {
        "scale": _SCALE,
        "measures": measures,
        "weights": [[_cells(values_TT) for _, values_TT in entry.by_measure] for entry in weights],
    }
    last = len(tokens) - 1
    lines = []
    for measure, values_TT in weights[0].by_measure:
        words = "".join(
            f'<button type="button" tabindex="{0 if i == last else -1}" data-token="{i}" '
            f'style="--share:{value if math.isfinite(value) else 0:.4g}">{_word(token)}</button>'
            for i, (token, value) in enumerate(zip(tokens, values_TT[last].tolist(), strict=True))
        )
        lines.append(f'<h4>{escape(measure)}</h4><p class="words" data-measure="{escape(measure)}">{words}</p>')
    return (
        f'<div class="passage" role="group" aria-label="{escape(label)}">'
        f'<label>Head: <select aria-label="head of {escape(label)}">{options}</select></label>'
        '<p class="reading" role="status">Click a token, or go there with the arrow keys: the tokens before it are '
        "coloured by what they give to it. Blue adds to the output at that place, orange takes away from it.</p>"
        f"{''.join(lines)}{json_script(data)}</div>"
    )


def _word(token: str) -> str:
    """The text of a token; white space that could not be seen is drawn."""
    return escape(token.replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def _cells(values_TT: Tensor) -> str:
    """The causal half of a matrix, row by row, as little-endian 16-bit thousandths; NaN is the lowest number."""
    values = values_TT.double().cpu().numpy()[np.tril_indices(len(values_TT))]
    limit = np.iinfo(np.int16).max
    rounded = np.where(np.isfinite(values), np.rint(np.nan_to_num(values) * _SCALE).clip(-limit, limit), -limit - 1)
    return base64.b64encode(rounded.astype("<i2").tobytes()).decode()
