"""Writes the numbers of a study as text, in the same form for the table and for the page."""

from __future__ import annotations

from collections.abc import Callable

from saf_titan.report.format import short
from saf_titan.study.answers import accuracy_of
from saf_titan.study.results import ArmResult
from saf_titan.study.statistics import Spread

_FORMS: dict[str, Callable[[float], str]] = {
    "final": lambda x: f"{x:.4f}",
    "change": lambda x: f"{x:+.4f}",
    "perplexity": lambda x: f"{x:+.2f}",
    "published": lambda x: f"{x:+.3f}",
    "accuracy": lambda x: f"{x:.2f}",
    "jump": lambda x: f"{x:+.4f}",
    "updates": lambda x: f"{x:,.0f}",
    "tokens": short,
    "seconds": lambda x: f"{x:,.1f}",
    "before": lambda x: f"{x:.3g}",
    "after": lambda x: f"{x:.3g}",
    "speedup": lambda x: f"{x:.2f}",
    "calibrate": lambda x: f"{x:.2f}",
    "fit": lambda x: f"{x:.2f}",
    "memory": lambda x: f"{x:.2f}",
    "heads": lambda x: f"{x:.0f}",
}
"""Column -> a function that writes one of its numbers."""

_TITLES = {
    "perplexity": "perplexity %",
    "accuracy": "accuracy %",
    "published": "published %",
    "memory": "GiB",
    "before": "steps/s before",
}
_TITLES |= {"after": "steps/s after", "speedup": "speed", "calibrate": "calibrate s", "fit": "fit s"}


def title(column: str) -> str:
    """Return the heading of a column."""
    return _TITLES.get(column, column)


def cell(column: str, values: Spread) -> str:
    """Return the cell of a column: the mean over seeds, and the standard deviation if there are several values.

    Changes also get the 95 % interval of the mean. A cell without values is "-".
    """
    if not values.values:
        return "-"
    form = _FORMS[column]
    text = form(values.mean)
    if len(values.values) > 1 and values.deviation > 0:
        text += f" +- {form(values.deviation).lstrip('+')}"
        if column in ("change", "perplexity"):
            low, high = values.mean - values.half_width, values.mean + values.half_width
            text += f" [{form(low)}, {form(high)}]"
    return text


def answer_row(result: ArmResult, kinds: list[tuple[int, int]]) -> list[str]:
    """Return the cells of an arm in the table of right answers: its name, and one cell for each kind of sequences."""
    answers = [run.answers for run in result.runs]
    return [result.arm.name, *(cell("accuracy", accuracy_of(answers, kind)) for kind in kinds)]
