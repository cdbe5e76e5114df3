"""What all figures share: size, style, colours, and the conversion to SVG in the page's text colour.

Every figure is at most `WIDTH` inches wide. On a phone of 390 pixels it is then scaled to three quarters at least, and
its labels stay readable. Wider figures are made of several that the page sets side by side.
"""

import io
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#010203"
"""Placeholder for the page's text colour, replaced when the SVG is written."""
WIDTH = 4.9
"""Inches; at 96 pixels an inch, two such figures fit side by side on the page."""
FONT_POINTS = 10.5
BLUE, ORANGE, GREY = "#3b7dc0", "#d9822b", "#8b93a0"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": FONT_POINTS,
    "axes.titlesize": FONT_POINTS,
    "legend.fontsize": FONT_POINTS,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    # equal runs give equal reports
    "svg.hashsalt": "saf_titan",
    "svg.fonttype": "path",
}
MAX_POINTS = 4000
DIVERGED = 1e6
"""Larger losses, and losses that are not finite, are not drawn."""


def running_mean(values: np.ndarray, half_width: int) -> np.ndarray:
    """Return, for each value, the mean over it and up to half_width neighbours on either side."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half_width, 0), np.minimum(index + half_width + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def mark_freezes(axes: Axes, steps: Iterable[int], *, label: str = "") -> None:
    """Draw a dashed vertical line at each freeze; `label` names them in the legend."""
    for number, step in enumerate(steps):
        of_first = "" if number else label
        axes.axvline(step, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0, label=of_first)


def to_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # inside HTML the element stands without the XML prologue
    return text[text.index("<svg") :].replace(INK, "currentColor")
