"""A plan as a picture: the score of every head, the static ones marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticPlan


def save_picture(path: str | Path, plan: StaticPlan, calibration: Calibration) -> None:
    """Write a heat map, layer by head, as PNG (or whatever the suffix of the path says).

    The colour is the score the plan was made by, or the variance for a selector without scores; grey heads were
    static before. Circles are the plan's heads, crosses those it skipped.
    """
    table = calibration.all_scores()
    name = plan.selector if plan.selector in table else "variance"
    score_LH = np.ma.masked_invalid(table[name].numpy())
    num_layers, num_heads = score_LH.shape
    figure = Figure(figsize=(2.4 + 0.32 * num_heads, 1.2 + 0.32 * num_layers), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.set_facecolor("lightgrey")
    positive = score_LH.count() > 0 and score_LH.min() > 0
    image = axes.imshow(score_LH, norm=LogNorm() if positive else None)
    axes.scatter(
        [h.head for h in plan.heads], [h.layer for h in plan.heads], marker="o", facecolors="none", edgecolors="white"
    )
    axes.scatter([h.head for h in plan.skipped], [h.layer for h in plan.skipped], marker="x", c="white")
    axes.set_xticks(range(num_heads))
    axes.set_yticks(range(num_layers))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"{len(plan.heads)} static heads, step {plan.step}", fontsize="medium")
    figure.colorbar(image, ax=axes, label=name)
    figure.savefig(path)
