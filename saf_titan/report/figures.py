"""The figures of a report, as SVG in the page's text colour, so that they suit light and dark screens and paper.

To add a figure, write a function here that returns SVG, and call it in `sections.py`.

Legend: P blocks of the pooled attention maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saf_titan.report.drawing import (
    BLUE,
    DIVERGED,
    GREY,
    MAX_POINTS,
    ORANGE,
    STYLE,
    WIDTH,
    mark_freezes,
    running_mean,
    to_svg,
)
from saf_titan.report.event import FreezeEvent, pooled_pattern
from saf_titan.report.format import short
from saf_titan.report.rows import perplexity
from saf_titan.report.run_log import RunLog
from saf_titan.saf.plan.plan import StaticHead


def loss_figure(log: RunLog) -> str:
    """Draw the loss of the whole run: training, raw and smoothed, and validation, with a line at each freeze."""
    return _loss_between(log, 0, log.last_step, legend=True)


def loss_near_freeze_figure(log: RunLog) -> str | None:
    """Draw the loss around the first freeze, over a quarter of the run; None without a freeze."""
    if not log.freezes:
        return None
    step, span = log.freezes[0].step, max(2, round(0.12 * log.last_step))
    return _loss_between(log, max(0, step - span), min(log.last_step, step + span), legend=False)


def _loss_between(log: RunLog, first: int, last: int, *, legend: bool) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
        axes = figure.subplots()
        _draw_loss(axes, log, first, last)
        if legend:
            axes.legend(loc="upper right")
        return to_svg(figure)


def _draw_loss(axes: Axes, log: RunLog, first: int, last: int) -> None:
    train = [point for point in log.train if abs(point.loss) < DIVERGED]
    steps = np.array([point.step for point in train])
    losses = np.array([point.loss for point in train])
    smooth = running_mean(losses, max(1, len(losses) // 50))
    inside = np.flatnonzero((steps >= first) & (steps <= last))
    inside = inside[:: max(1, len(inside) // MAX_POINTS)]
    points = [point for point in log.validations if first <= point.step <= last and abs(point.loss) < DIVERGED]
    axes.plot(steps[inside], losses[inside], color=BLUE, alpha=0.6, linewidth=0.8)
    axes.plot(steps[inside], smooth[inside], color=BLUE, linewidth=1.6, label="training")
    axes.plot(
        [point.step for point in points],
        [point.loss for point in points],
        color=ORANGE,
        linestyle="none",
        marker="o",
        markersize=4,
        label="validation",
    )
    mark_freezes(axes, (freeze.step for freeze in log.freezes if first <= freeze.step <= last), label="heads frozen")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10)))
    # the same ticks again on the right, named by their perplexity
    right = axes.secondary_yaxis("right")
    right.set_ylabel("perplexity")
    right.yaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10)))
    right.yaxis.set_major_formatter(lambda loss, _: short(perplexity(loss)))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if last > first:
        axes.set_xlim(first, last + 0.01 * (last - first))


def circuit_update_figure(log: RunLog) -> str | None:
    """Draw the relative update of both circuits against the step: thin lines for layers, a thick one for their mean.

    None if no update was measured that can be drawn on a logarithmic axis.
    """
    series = (("QK", BLUE, "qk_update"), ("OV", ORANGE, "ov_update"))
    return _circuit_figure(log, series, "size of an update / size of the circuit", is_log=True)


def circuit_attention_figure(log: RunLog) -> str | None:
    """Draw entropy, sink mass and recent mass of attention against the step: thin for layers, thick for their mean.

    None if attention was not measured.
    """
    series = (("entropy", BLUE, "entropy"), ("sink", ORANGE, "sink_mass"), ("recent", GREY, "recent_mass"))
    return _circuit_figure(log, series, "attention", is_log=False)


def _circuit_figure(log: RunLog, series: Sequence[tuple[str, str, str]], label: str, *, is_log: bool) -> str | None:
    drawn = False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
        axes = figure.subplots()
        for name, color, key in series:
            rows = [row for row in log.circuits if getattr(row, key)]
            num_layers = max((len(getattr(row, key)) for row in rows), default=0)
            values_NL = np.array([getattr(row, key) for row in rows if len(getattr(row, key)) == num_layers])
            steps_N = np.array([row.step for row in rows if len(getattr(row, key)) == num_layers])
            # a logarithmic axis has no zero
            values_NL = np.ma.masked_where(~np.isfinite(values_NL) | (is_log & (values_NL <= 0)), values_NL)
            if not values_NL.count():
                continue
            drawn = True
            # one measurement is a point
            marker = "o" if len(steps_N) == 1 else None
            axes.plot(steps_N, values_NL, color=color, alpha=0.5, linewidth=0.8)
            axes.plot(steps_N, values_NL.mean(1), color=color, linewidth=1.8, marker=marker, label=name)
        mark_freezes(axes, (freeze.step for freeze in log.freezes))
        if is_log and drawn:
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if drawn:
            axes.legend(loc="best")
        return to_svg(figure) if drawn else None


@dataclass(frozen=True)
class PatternPair:
    """The attention map of one head before the freeze and the pattern that replaced it, in one range of colours."""

    head: StaticHead
    mean_svg: str
    pattern_svg: str


def pattern_figures(event: FreezeEvent, num_heads: int) -> list[PatternPair]:
    """Draw mean attention and pattern of `num_heads` static heads, spread over the ranking; fewer if there are fewer.

    The maps hold no text. Without plan and statistics the list is empty.
    """
    heads = event.new_heads
    if event.calibration is None or not heads or num_heads == 0:
        return []
    chosen = [heads[i] for i in np.linspace(0, len(heads) - 1, min(num_heads, len(heads))).round().astype(int)]
    pairs = []
    for head in chosen:
        mean_PP = event.calibration.mean_map_LHPP[head.layer, head.head].double()
        fitted_PP = pooled_pattern(head, mean_PP.shape[0])
        future_PP = np.triu(np.ones(mean_PP.shape, dtype=bool), 1)
        mean_map, fitted_map = (np.ma.array(map_PP.numpy(), mask=future_PP) for map_PP in (mean_PP, fitted_PP))
        # the first rows have few keys and much mass on each; without a limit they would darken all other rows
        brightest = np.quantile(np.concatenate([mean_map.compressed(), fitted_map.compressed()]), 0.98)
        pairs.append(PatternPair(head, _map_svg(mean_map, brightest), _map_svg(fitted_map, brightest)))
    return pairs


def _map_svg(map_PP: np.ma.MaskedArray, brightest: float) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2, 2.2))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        norm = PowerNorm(0.5, vmin=0, vmax=brightest, clip=True)
        axes.imshow(map_PP, norm=norm, cmap="viridis", interpolation="none")
        return to_svg(figure)
