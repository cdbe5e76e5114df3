"""The pictures of a report, as SVG that takes the page's text colour, so that it suits light, dark and paper.

Legend: L layers, H query heads, P blocks of the pooled pictures.
"""

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from saf_titan.report.event import FreezeEvent, pooled_pattern
from saf_titan.report.run_log import RunLog
from saf_titan.saf.plan.plan import SkippedHead, StaticHead

_INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
_BLUE, _ORANGE, _GREY = "#3b7dc0", "#d9822b", "#8b93a0"
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    # equal runs give equal reports
    "svg.hashsalt": "saf_titan",
    "svg.fonttype": "path",
}
_MAX_POINTS = 4000
_DIVERGED = 1e6
"""Losses beyond it, and those that are no numbers, are not drawn."""
_COLUMNS = 4


def loss_figure(log: RunLog) -> str:
    """Loss in training, raw and smoothed, and in validation, with a line at each freeze; the first one enlarged."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.8, 3.3), layout="constrained")
        steps = [freeze.step for freeze in log.freezes]
        if steps:
            whole, near = figure.subplots(1, 2, width_ratios=(2, 1))
            _draw_loss(whole, log, 0, log.last_step)
            span = max(2, round(0.12 * log.last_step))
            _draw_loss(near, log, max(0, steps[0] - span), min(log.last_step, steps[0] + span))
            near.set_title("around the freeze", loc="left")
            near.set_ylabel("")
        else:
            whole = figure.subplots()
            _draw_loss(whole, log, 0, log.last_step)
        whole.legend(loc="upper right")
        return _to_svg(figure)


def _draw_loss(axes: Axes, log: RunLog, first: int, last: int) -> None:
    train = [point for point in log.train if abs(point.loss) < _DIVERGED]
    steps = np.array([point.step for point in train])
    losses = np.array([point.loss for point in train])
    smooth = _running_mean(losses, max(1, len(losses) // 50))
    inside = np.flatnonzero((steps >= first) & (steps <= last))
    inside = inside[:: max(1, len(inside) // _MAX_POINTS)]
    points = [point for point in log.validations if first <= point.step <= last and abs(point.loss) < _DIVERGED]
    axes.plot(steps[inside], losses[inside], color=_BLUE, alpha=0.45, linewidth=0.8)
    axes.plot(steps[inside], smooth[inside], color=_BLUE, linewidth=1.6, label="training")
    axes.plot(
        [point.step for point in points],
        [point.loss for point in points],
        color=_ORANGE,
        linestyle="none",
        marker="o",
        markersize=4,
        label="validation",
    )
    for number, freeze in enumerate(freeze for freeze in log.freezes if first <= freeze.step <= last):
        label = "" if number else "heads frozen"
        axes.axvline(freeze.step, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if last > first:
        axes.set_xlim(first, last + 0.01 * (last - first))


def _running_mean(values: np.ndarray, half_width: int) -> np.ndarray:
    """Mean over up to half_width neighbours on either side."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half_width, 0), np.minimum(index + half_width + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def score_figure(event: FreezeEvent) -> str | None:
    """Layer by head: the score, with the chosen and the skipped heads marked; None without plan and statistics."""
    scores = event.scores()
    if event.plan is None or scores is None:
        return None
    name, scores_LH = scores
    values_LH = np.ma.masked_invalid(scores_LH.numpy())
    num_layers, num_heads = values_LH.shape
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(min(9.8, 2.6 + 0.36 * num_heads), 1.5 + 0.3 * num_layers), layout="constrained")
        axes = figure.subplots()
        mesh = axes.pcolormesh(values_LH, norm=_log_norm(values_LH), cmap="viridis", edgecolor="white", linewidth=0.6)
        for layer, head in np.argwhere(np.ma.getmaskarray(values_LH)):
            axes.text(head + 0.5, layer + 0.5, "static", ha="center", va="center", fontsize=5.5, color=_GREY)
        skipped = event.plan.skipped
        axes.scatter(*_centres(event.new_heads), s=30, facecolor="white", edgecolor="black", linewidth=0.8)
        axes.scatter(*_centres(skipped), s=42, marker="X", facecolor=_ORANGE, edgecolor="black", linewidth=0.5)
        axes.set_xticks(np.arange(num_heads) + 0.5, [str(head) for head in range(num_heads)])
        axes.set_yticks(np.arange(num_layers) + 0.5, [str(layer) for layer in range(num_layers)])
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.spines[:].set_visible(False)
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        figure.colorbar(mesh, ax=axes, label=name, shrink=min(0.9, 12 / num_layers), aspect=18, pad=0.02)
        marks = [Line2D([], [], linestyle="none", marker="o", mfc="white", mec="black", mew=0.8, label="made static")]
        if skipped:
            marks.append(
                Line2D([], [], linestyle="none", marker="X", mfc=_ORANGE, mec="black", mew=0.6, label="skipped")
            )
        figure.legend(handles=marks, loc="outside upper left", ncols=2, handletextpad=0.2)
        return _to_svg(figure)


def _centres(heads: Sequence[StaticHead | SkippedHead]) -> tuple[list[float], list[float]]:
    """Where heads stand in the layer-by-head picture."""
    return [head.head + 0.5 for head in heads], [head.layer + 0.5 for head in heads]


def _log_norm(values: np.ma.MaskedArray) -> Normalize:
    positive = values.compressed()[values.compressed() > 0]
    if len(positive) == 0 or positive.min() == positive.max():
        return Normalize()
    return LogNorm(positive.min(), positive.max())


def pattern_figure(event: FreezeEvent, num_heads: int) -> str | None:
    """Mean attention above the pattern that replaces it, for heads spread over the ranking; None if there are none."""
    heads = event.new_heads
    if event.plan is None or event.calibration is None or not heads or num_heads == 0:
        return None
    chosen = [heads[i] for i in np.linspace(0, len(heads) - 1, min(num_heads, len(heads))).round().astype(int)]
    num_bands = -(-len(chosen) // _COLUMNS)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.8, 4.7 * num_bands), layout="constrained")
        bands = figure.subfigures(num_bands, 1, squeeze=False)[:, 0]
        for number, head in enumerate(chosen):
            column = number % _COLUMNS
            if column == 0:
                grid = bands[number // _COLUMNS].subplots(2, _COLUMNS)
                grid[0, 0].set_ylabel("mean attention")
                grid[1, 0].set_ylabel(
                    "fitted pattern" if event.plan.content == "mean" else f"{event.plan.content} pattern"
                )
                for axes in grid.flat:
                    _clear(axes)
            mean_PP = event.calibration.mean_map_LHPP[head.layer, head.head].double()
            fitted_PP = pooled_pattern(head, mean_PP.shape[0])
            future_PP = np.triu(np.ones(mean_PP.shape, dtype=bool), 1)
            maps = [np.ma.array(map_PP.numpy(), mask=future_PP) for map_PP in (mean_PP, fitted_PP)]
            # the first rows have few keys and much mass on each; they would darken all others
            brightest = np.quantile(np.concatenate([map_PP.compressed() for map_PP in maps]), 0.98)
            for axes, map_PP in zip(grid[:, column], maps, strict=True):
                norm = PowerNorm(0.5, vmin=0, vmax=brightest, clip=True)
                axes.imshow(map_PP, norm=norm, cmap="viridis", interpolation="none")
            grid[0, column].set_title(f"layer {head.layer}, head {head.head}: KL {head.fit_kl:.3f}", loc="left")
        return _to_svg(figure)


def _clear(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _to_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # the page needs the element alone, without XML prologue
    return text[text.index("<svg") :].replace(_INK, "currentColor")
