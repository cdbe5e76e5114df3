"""Figures of several runs: loss over tokens and seconds, difference to the baseline, maps of static heads.

Legend: L layers, H query heads, N points of a common axis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saf_titan.report.drawing import DIVERGED, GREY, STYLE, WIDTH, running_mean, to_svg
from saf_titan.report.format import short
from saf_titan.report.group import Group
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import final_validation

_COLOURS = ("#8b93a0", "#3b7dc0", "#d9822b", "#3a9a5c", "#b5476b", "#7a5cc0", "#a08a2c", "#2f9aa0")
"""The baseline is grey. With more groups the colours come again with another line style."""
_LINES = ("-", "--", ":", "-.")
_POINTS = 400
Axis = Literal["tokens", "seconds"]


def loss_figure(groups: Sequence[Group], axis: Axis) -> str:
    """Draw the smoothed training loss of every group over tokens or seconds; empty where no run has recorded them."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes()
        lines = 0
        for number, group in enumerate(groups):
            drawn = [(log, curve) for log in group.logs if len((curve := _curve(log, axis))[0]) > 1]
            if not drawn:
                continue
            grid_N, mean_N = _mean_curve([curve for _, curve in drawn])
            colour, line = look(number)
            axes.plot(grid_N, mean_N, color=colour, linestyle=line, linewidth=1.4)
            for log, (positions_N, _) in drawn:
                end = final_validation(log)
                if end is not None and abs(end.loss) < DIVERGED:
                    axes.plot(positions_N[-1], end.loss, color=colour, marker="o", markersize=4)
            lines += 1
        if not lines:
            return ""
        axes.set_xlabel(axis)
        axes.set_ylabel("loss (nats per token)")
        return _finish(figure, axes)


def difference_figure(groups: Sequence[Group]) -> str:
    """Draw the training loss minus the first group's at the same step, run by run; empty if no steps are shared."""
    baseline = groups[0].logs
    with mpl.rc_context(STYLE):
        figure, axes = _axes()
        lines = 0
        for number, group in enumerate(groups[1:], start=1):
            curves = []
            for log, other in zip(group.logs, baseline, strict=False):
                losses = {row.step: row.loss for row in other.train if abs(row.loss) < DIVERGED}
                rows = [row for row in log.train if row.step in losses and abs(row.loss) < DIVERGED]
                if len(rows) > 1:
                    differences_N = np.array([row.loss - losses[row.step] for row in rows])
                    smooth_N = running_mean(differences_N, max(1, len(rows) // 20))
                    curves.append((np.array([row.step for row in rows], dtype=float), smooth_N))
            if not curves:
                continue
            grid_N, mean_N = _mean_curve(curves)
            colour, line = look(number)
            axes.plot(grid_N, mean_N, color=colour, linestyle=line, linewidth=1.4)
            lines += 1
        if not lines:
            return ""
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=0)
        axes.set_xlabel("step")
        axes.set_ylabel("difference (nats per token)")
        return _finish(figure, axes)


def head_map(runs: Sequence[Collection[tuple[int, int]]], shape: tuple[int, int]) -> str:
    """Draw layers by heads, each head as dark as the share of runs in which it is static; the picture holds no text."""
    share_LH = np.zeros(shape)
    for heads in runs:
        for layer, head in heads:
            share_LH[layer, head] += 1 / len(runs)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.2, 2.2 * min(2.0, max(0.4, shape[0] / shape[1]))))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.pcolormesh(share_LH, cmap="Blues", vmin=0, vmax=1, edgecolor=GREY, linewidth=0.4)
        axes.invert_yaxis()
        return to_svg(figure)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes) -> str:
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda number, _: short(number))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    return to_svg(figure)


def look(number: int) -> tuple[str, str]:
    """Return colour and style of the line of a group, for its figures and their legend."""
    return _COLOURS[number % len(_COLOURS)], _LINES[number // len(_COLOURS) % len(_LINES)]


def _curve(log: RunLog, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return the smoothed training loss of a run: (N,) positions and (N,) losses."""
    rows = [row for row in log.train if abs(row.loss) < DIVERGED and np.isfinite(getattr(row, axis))]
    positions_N = np.array([getattr(row, axis) for row in rows], dtype=float)
    losses_N = np.array([row.loss for row in rows], dtype=float)
    return positions_N, running_mean(losses_N, max(1, len(rows) // 50)) if rows else losses_N


def _mean_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of several curves, on the part of the axis that all of them cover."""
    low = max(positions_N[0] for positions_N, _ in curves)
    high = max(low, min(positions_N[-1] for positions_N, _ in curves))
    grid_N = np.linspace(low, high, _POINTS)
    return grid_N, np.mean([np.interp(grid_N, *curve) for curve in curves], axis=0)
