"""Single-head replacement: how much the loss rises when a single head becomes static, measured for every head.

Selectors estimate this rise. Measuring it takes one evaluation of the loss for each head.

Legend: L layers, H query heads.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from saf_titan.analysis.stored_rows import StoredRows
from saf_titan.heads.names import head_name, parse_heads
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.install.install import FreezableAttention, install
from saf_titan.saf.plan.decide import DenseSource, make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings


@dataclass(frozen=True)
class ReplacementLosses:
    """The loss of the unchanged model, and the loss with each live head replaced alone."""

    base: float
    """Nats per token."""
    loss_LH: Tensor
    """float64 (L, H), nats per token; NaN for a head that was static already."""

    @property
    def change_LH(self) -> Tensor:
        """How much the loss rises by each replacement; below 0 where it falls."""
        return self.loss_LH - self.base


class ReplaceableAttention(FreezableAttention, Protocol):
    """An attention layer of which `install` can make heads static."""

    num_heads: int


def replacement_losses(
    attentions: Sequence[ReplaceableAttention],
    calibration: Calibration,
    loss: Callable[[], float],
    *,
    content: str = "mean",
    seed: int = 0,
    base_plan: StaticPlan | None = None,
    dense: DenseSource | None = None,
    store: Path | None = None,
    resumed: Callable[[int], object] | None = None,
    progress: Progress | None = None,
) -> ReplacementLosses:
    """Replace each live head of a model by its fitted pattern, one at a time, and measure the loss.

    The weights are never changed, and at the end the heads are as they were.

    Args:
        attentions: the attention layers of the model, in order.
        calibration: of the same model, with the same heads static.
        loss: returns the loss of the model in its current state, in nats per token. It is called once before any
            replacement, and once for each head.
        content: what takes the place of a head; contents that are random use `seed`.
        base_plan: the heads that are static already.
        dense: makes the patterns of a dense content; see `make_plan`.
        store: a file of JSON lines that keeps each loss as soon as it is measured. A call that finds it goes on with
            the heads that it lacks.
        resumed: called once with the number of heads whose loss the store has already, if there are any.
        progress: called after each head, with the stage "replacement".

    Raises ValueError if the statistics are of a model of another size, and if the store is of other statistics, of
    another content, or of another loss before replacement.
    """
    sizes = len(attentions), attentions[0].num_heads
    if sizes != tuple(calibration.live_LH.shape):
        raise ValueError(
            f"the statistics are of {calibration.num_layers} layers of {calibration.num_heads} heads, and the model "
            f"has {sizes[0]} of {sizes[1]}"
        )
    live = [(layer, head) for layer, head in calibration.live_LH.nonzero().tolist()]
    heads = tuple(head_name(*slot) for slot in live)
    settings = PlanSettings(
        rate=1.0, selector="list", heads=heads, content=content, seed=seed, max_fit_kl=sys.float_info.max
    )
    # every head is fitted, to be installed one at a time
    whole = make_plan(calibration, settings, base_plan=base_plan, dense=dense)
    fitted = {head.slot: head for head in whole.heads}
    already = base_plan.heads if base_plan is not None else ()
    base = loss()
    stored = _stored(store, plan=whole.digest, content=content, loss=base)
    known = {row["head"]: float(row["loss"]) for row in stored.rows}
    if known and resumed:
        resumed(len(known))
    loss_LH = torch.full(calibration.live_LH.shape, math.nan, dtype=torch.float64)
    try:
        for done, slot in enumerate(live, 1):
            name = head_name(*slot)
            if name not in known:
                alone = sorted((*already, fitted[slot]), key=lambda head: head.slot)
                install(attentions, dataclasses.replace(whole, heads=tuple(alone)))
                known[name] = loss()
                stored.add({"head": name, "loss": known[name]})
            loss_LH[slot] = known[name]
            if progress:
                progress("replacement", done, len(live))
    finally:
        install(attentions, base_plan)
    return ReplacementLosses(base, loss_LH)


def _stored(path: Path | None, *, plan: str, content: str, loss: float) -> StoredRows:
    """Open the store of `replacement_losses`: a row for each head, with its name and the loss."""

    def check(row: dict[str, Any]) -> None:
        parse_heads(row["head"])
        float(row["loss"])

    return StoredRows(
        path,
        {"format": "saf_titan.replacement", "content": content, "plan": plan, "loss": loss},
        what="replacement losses",
        check=check,
        differences={"plan": "other statistics", "loss": "another loss before any replacement (model or data differ)"},
        remedy="name another file",
    )


def rank_correlation(x_N: Tensor, y_N: Tensor, given: Sequence[Tensor] = ()) -> float:
    """Spearman's correlation of two lists, NaN pairs left out; in [-1, 1], NaN where one of them is constant.

    given: further lists (N,) whose linear effect on the ranks is taken out of both first (partial correlation).
    """
    lists = [x_N, y_N, *given]
    kept = ~torch.stack([values.isnan() for values in lists]).any(0)
    ranks = [_ranks(values.double()[kept]) for values in lists]
    x, y = ranks[0] - ranks[0].mean(), ranks[1] - ranks[1].mean()
    if given:
        others = torch.stack([*ranks[2:], torch.ones_like(x)], dim=1)
        x, y = (v - others @ torch.linalg.lstsq(others, v.unsqueeze(1), driver="gelsd").solution[:, 0] for v in (x, y))
    scale = (x.norm() * y.norm()).item()
    return (x @ y).item() / scale if scale > 1e-9 else math.nan


def _ranks(values_N: Tensor) -> Tensor:
    """Ranks from 0; equal values share their mean rank."""
    _, group, count = values_N.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count + 1) / 2)[group]


def replacement_lines(losses: ReplacementLosses, calibration: Calibration) -> list[str]:
    """A table of all live heads, the costliest first, and the rank correlation of each score with the cost."""
    change_LH = losses.change_LH
    scores = calibration.all_scores()
    lines = [f"{'head':<8}{'loss rises by':>14}" + "".join(f"{name:>17}" for name in scores)]
    live = calibration.live_LH.nonzero().tolist()
    for layer, head in sorted(live, key=lambda slot: -change_LH[slot[0], slot[1]].item()):
        values = "".join(f"{score_LH[layer, head].item():>17.4g}" for score_LH in scores.values())
        lines.append(f"{head_name(layer, head):<8}{change_LH[layer, head].item():>+14.5f}{values}")
    layer_LH = torch.arange(len(change_LH), dtype=torch.float64)[:, None].expand_as(change_LH)
    given = [x.flatten() for x in (layer_LH, calibration.entropy_LH)]
    lines.append("")
    lines.append(f"{'rank correlation with the rise':<34}{'plain':>8}{'given layer and entropy':>26}")
    for name, score_LH in scores.items():
        plain = rank_correlation(score_LH.flatten(), change_LH.flatten())
        partial = rank_correlation(score_LH.flatten(), change_LH.flatten(), given)
        lines.append(f"{name:<34}{plain:>8.3f}{partial:>26.3f}")
    return lines
