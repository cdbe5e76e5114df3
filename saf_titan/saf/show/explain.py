"""Show a ranking as text: all scores of every head side by side, and the rank correlations of the scores.

Legend: L layers, H query heads, S scores, N live heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.fields.errors import nearest
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.select.registry import SELECTORS


def spearman(a_N: Tensor, b_N: Tensor) -> float:
    """Return the rank correlation in [-1, 1], where ties share a mean rank; NaN for a constant score or N < 2."""
    ranks = torch.stack([_mean_ranks(a_N), _mean_ranks(b_N)])
    return torch.corrcoef(ranks)[0, 1].item() if ranks.shape[1] > 1 else float("nan")


def explain(
    calibration: Calibration, *, selector: str = "variance", plan: StaticPlan | None = None, top: int = 0
) -> str:
    """Return the ranking by a selector as text: a line per head with all scores and [ranks], then the correlations.

    Args:
        selector: the score that orders the lines.
        plan: marks its heads as static and those it skipped with the reason.
        top: number of heads to list, from the first; 0 lists all.

    Raises ValueError if there is no such selector, or if the calibration has no scores of it.
    """
    table = calibration.all_scores()
    if selector not in table and selector not in SELECTORS:
        match = nearest(selector, {*table, *SELECTORS})
        hint = f"did you mean {match}? The scores" if match else "the scores"
        raise ValueError(f"{selector!r} is no selector; {hint} in these statistics are {', '.join(sorted(table))}")
    ordering_N = calibration.scores_of(selector)[calibration.live_LH]
    live_N2 = calibration.live_LH.nonzero()
    columns = {name: score_LH[calibration.live_LH] for name, score_LH in table.items()}
    ranks = {name: (_mean_ranks(score_N) + 1).round().int() for name, score_N in columns.items()}
    marks = {(s.layer, s.head): f"skipped: {s.reason}" for s in plan.skipped} if plan else {}
    marks |= {(h.layer, h.head): f"static, fit KL {h.fit_kl:.3f} nat" for h in plan.heads} if plan else {}

    names = [selector, *(name for name in table if name != selector)]
    extras = {
        "entropy": calibration.entropy_LH,
        "sink": calibration.sink_mass_LH,
        "recent": calibration.recent_mass_LH(),
    }
    lines = [" ".join(["head   ", *(f"{name:>18}" for name in names), *(f"{name:>8}" for name in extras)])]
    order = sorted(range(len(live_N2)), key=lambda n: (ordering_N[n].item(), live_N2[n].tolist()))
    for n in order[: top or None]:
        layer, head = live_N2[n].tolist()
        scores = (f"{columns[name][n].item():>11.3e} {f'[{ranks[name][n].item()}]':>6}" for name in names)
        shape = (f"{value_LH[layer, head].item():>8.3f}" for value_LH in extras.values())
        lines.append(" ".join([f"{f'L{layer}H{head}':<7}", *scores, *shape, marks.get((layer, head), "")]).rstrip())
    if len(names) > 1:
        lines += ["", "Spearman rank correlation of the scores"]
        lines += [" ".join([f"{'':<18}", *(f"{name:>16}" for name in names)])]
        for name in names:
            row = (f"{spearman(columns[name], columns[other]):>16.3f}" for other in names)
            lines.append(" ".join([f"{name:<18}", *row]))
    return "\n".join(lines)


def _mean_ranks(score_N: Tensor) -> Tensor:
    """Return ranks from 0 in float64; equal scores share the mean of their ranks."""
    _, group_N, count_G = score_N.unique(return_inverse=True, return_counts=True)
    first_G = count_G.cumsum(0) - count_G
    return (first_G + (count_G - 1) / 2)[group_N].double()
