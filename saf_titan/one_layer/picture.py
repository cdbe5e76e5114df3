"""Pictures and tables of the one-layer experiments."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from saf_titan.one_layer.experiments import Arm


def save_maps(path: Path, arms: Sequence[Arm]) -> None:
    """Draw the DTAP map of each arm, averaged over seeds, with the predicted attention mass as a dashed line."""
    columns = min(4, len(arms))
    rows = math.ceil(len(arms) / columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.9 * rows), layout="constrained", dpi=150)
    grid = figure.subplots(rows, columns, squeeze=False)
    image = None
    for axes, arm in zip(grid.flat, arms, strict=False):
        image = axes.imshow(arm.maps_SXY.mean(0).T, origin="lower", extent=(0, 1, 0, 1), vmin=0, vmax=1, cmap="viridis")
        row = arm.row()
        axes.set_title(f"{arm.title}\nmass {row['mass']:.3f} ± {row['mass sd']:.3f}", fontsize="small")
        if not math.isnan(arm.predicted_mass):
            axes.axvline(arm.predicted_mass, color="white", linestyle="--", linewidth=1)
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("attention on distinct tokens")
    for axes in grid[:, 0]:
        axes.set_ylabel("probability of the class")
    assert image is not None
    figure.colorbar(image, ax=grid.ravel().tolist(), label="share of test sequences", shrink=0.8)
    figure.savefig(path)


def save_sweep(path: Path, arms: Sequence[Arm], curve: Sequence[tuple[float, float]]) -> None:
    """Plot 1 - mass against the ratio: mean and deviation of trained seeds, and the theory's `curve` (ratio, mass).

    An empty curve is left out.
    """
    figure = Figure(figsize=(4.8, 3.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    if curve:
        ratios, masses = np.array(curve).T
        axes.plot(ratios, 1 - masses, color="0.5", label="theory (population flow)")
    trained = np.array([float(arm.title) for arm in arms])
    missing_AS = np.array([1 - arm.result.mass_S.numpy() for arm in arms])
    axes.errorbar(trained, missing_AS.mean(1), yerr=missing_AS.std(1), fmt="o", capsize=3, label="trained")
    axes.set(xscale="log", yscale="log", xlabel="QK rate / OV rate", ylabel="1 - attention on distinct tokens")
    axes.legend(frameon=False)
    figure.savefig(path)


def save_table(folder: Path, name: str, arms: Sequence[Arm]) -> str:
    """Write the rows of the arms as `name`.csv and `name`.json, and return them as an aligned table."""
    rows = [arm.row() for arm in arms]
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    # JSON has no NaN
    plain = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    (folder / f"{name}.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    lines = [f"{'setting':<22}{'predicted':>10}{'mass':>20}{'AC':>16}{'steps':>18}{'reached':>9}"]
    for row in rows:
        mass, ac = f"{row['mass']:.4f} ± {row['mass sd']:.4f}", f"{row['AC']:.3f} ± {row['AC sd']:.3f}"
        predicted = row["predicted"]
        shown = "-" if isinstance(predicted, float) and math.isnan(predicted) else f"{predicted:.4f}"
        steps = f"{row['steps']:.0f} ± {row['steps sd']:.0f}"
        lines.append(f"{row['setting']!s:<22}{shown:>10}{mass:>20}{ac:>16}{steps:>18}{row['reached']!s:>9}")
    return "\n".join(lines)
