"""Aligned tables of text, with colour where the output is a terminal."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Sequence


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number with so many decimals; "-" for NaN."""
    return "-" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def text_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    has_rule: bool = False,
    is_terminal: bool = False,
) -> list[str]:
    """Lines of a table: the columns in `left` to the left, the others to the right, two spaces between columns.

    has_rule: draw a line under the heading. The heading is bold where `is_terminal` is true; otherwise the text has no
    control characters.
    """
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    heading, *lines = [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (columns, *rows)
    ]
    rule = ["-" * max(map(len, (heading, *lines)))] if has_rule else []
    return [f"\x1b[1m{heading}\x1b[0m" if is_terminal else heading, *rule, *lines]


def stdout_is_terminal() -> bool:
    """Whether standard output shows control characters; NO_COLOR asks for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
