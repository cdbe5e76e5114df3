"""The decision of a freeze event: rank the heads, fit their patterns, keep those that fit, until there are enough.

Legend: L layers, H query heads, T time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from saf_titan.heads.counts import Rounding, head_count
from saf_titan.heads.names import Head
from saf_titan.ops.pattern import PATHS, prepare_pattern
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.contents import CONTENTS, PRUNE, content_parameters
from saf_titan.saf.fit.dense import DensePatterns
from saf_titan.saf.fit.dense_memory import DENSE_CONTENTS, dense_excess
from saf_titan.saf.fit.fit import FitMethod, compact_kl, fit_compact
from saf_titan.saf.plan.plan import SkippedHead, StaticHead, StaticPlan
from saf_titan.saf.select.ranking import rank_heads, require_live, scores

logger = logging.getLogger(__name__)

# bounds the memory of the fit, not its result
_FIT_CHUNK = 32

Fit = Callable[[Calibration, Sequence[Head]], tuple[Tensor, Tensor, Tensor]]
"""alpha_NT, rho_NT and the KL of N heads."""

DenseSource = Callable[[Sequence[Head], str], DensePatterns]
"""Patterns of (layer, head) slots for a dense content; see `dense.dense_patterns`."""


def make_plan(
    calibration: Calibration,
    *,
    step: int,
    rate: float,
    selector: str = "variance",
    content: str = "mean",
    max_fit_kl: float = 0.2,
    rounding: Rounding = "round",
    max_per_layer: int | None = None,
    exclude_layers: Collection[int] = (),
    on_shortfall: Literal["error", "warn"] = "error",
    fit_method: FitMethod = "lbfgs",
    seed: int = 0,
    heads: Sequence[Head] = (),
    base_plan: StaticPlan | None = None,
    dense: DenseSource | None = None,
    max_dense_gib: float = 2.0,
) -> StaticPlan:
    """Choose the heads that become static and their patterns.

    Heads are tried in order of their score. One whose compact fit is farther than `max_fit_kl` (nats a row) from its
    mean attention is skipped, and the next candidate takes its place. The heads do not depend on the content, so that
    contents can be compared on the same heads; only "prune", which puts no pattern in a head's place, fits none and
    skips none.

    Args:
        calibration: statistics of the live heads.
        step: training step of the event, goes into the plan.
        rate: share of all L * H heads that are static after the event, in [0, 1].
        selector: a score, see `select.scores`; "random_layer_matched" for a random order in which each layer gets as
            many heads as "variance" would give it; "list" for exactly `heads`, all of which must fit.
        content: "prune", a dense content (see `dense.py`), or one of `contents.content_parameters`.
        rounding: of rate * L * H, see `head_count`.
        max_per_layer: a layer gets at most as many static heads, those of `base_plan` included.
        exclude_layers: layers that get none.
        on_shortfall: what happens if too few heads can be made static: ValueError, or a logged warning.
        fit_method: see `fit_compact`.
        seed: of the random selectors and of the compact content "random".
        heads: (layer, head) in order, for selector "list" alone.
        base_plan: the plan so far (a ramp): its heads stay and count.
        dense: makes the patterns of a dense content for heads of the model that was calibrated.
        max_dense_gib: what the matrices of a dense content may take, those of `base_plan` included.

    Returns the plan of all static heads, those of `base_plan` included.
    Raises ValueError on a shortfall, on unknown names, where a dense content takes too much memory or has no model,
    and if `base_plan` and the calibration disagree about which heads are static already.
    """
    if on_shortfall not in ("error", "warn"):
        raise ValueError(f"unknown on_shortfall {on_shortfall!r}: choose error or warn")
    if content not in CONTENTS:
        raise ValueError(f"unknown pattern content {content!r}: choose {', '.join(CONTENTS)}")
    base_heads = base_plan.heads if base_plan else ()
    _check_base(calibration, base_heads)
    quota = head_count(calibration.live_LH.numel(), rate, rounding) - len(base_heads)
    if content in DENSE_CONTENTS:
        _check_dense(content, len(base_heads) + quota, calibration.seq_len, max_dense_gib, dense)
    room = Counter(dict.fromkeys(range(calibration.num_layers), _layer_cap(calibration, max_per_layer)))
    room.subtract(head.layer for head in base_heads)
    fit = _no_fit if content == PRUNE else partial(_fit, method=fit_method)
    fill = partial(_fill_quota, calibration, fit, quota=quota, max_fit_kl=max_fit_kl, step=step)
    full, passed_over = "is full", None
    if selector == "list":
        scores_LH = scores(calibration, "variance")
        ranking = _check_list(heads, calibration, quota)
        on_shortfall = "error"
    elif selector == "random_layer_matched":
        variance_LH = scores(calibration, "variance")
        ranking = rank_heads(variance_LH, exclude_layers=exclude_layers)
        by_variance, passed_over = fill(scores_LH=variance_LH, ranking=ranking, room=room)
        full, room = "has as many as by variance", Counter(head.layer for head in by_variance)
        scores_LH = scores(calibration, "random", seed=seed)
        ranking = rank_heads(scores_LH, exclude_layers=exclude_layers)
    else:
        scores_LH = scores(calibration, selector, seed=seed)
        ranking = rank_heads(scores_LH, exclude_layers=exclude_layers)
    chosen, skipped = fill(scores_LH=scores_LH, ranking=ranking, room=room, full=full)
    if len(chosen) < quota:
        # layers matched to variance are as short as variance is: what that passed over tells why
        reasons = skipped if passed_over is None else passed_over
        _report_shortfall(quota - len(chosen), len(base_heads) + quota, rate, reasons, max_fit_kl, on_shortfall)
    plan = StaticPlan(
        heads=tuple(
            sorted(_with_content(chosen, content, calibration, seed, dense), key=lambda head: (head.layer, head.head))
        ),
        skipped=tuple(skipped),
        step=step,
        selector=selector,
        content=content,
        rate=rate,
        T_fit=calibration.seq_len,
        record=calibration.record,
    )
    return base_plan.extended_by(plan) if base_plan else plan


def _fit(calibration: Calibration, slots: Sequence[Head], *, method: FitMethod) -> tuple[Tensor, Tensor, Tensor]:
    index = tuple(torch.tensor(slots).T)
    fit = fit_compact(
        calibration.column_mass_LHT[index],
        calibration.diagonal_mass_LHT[index],
        calibration.neg_entropy_LH[index],
        method=method,
    )
    return fit.alpha_HT, fit.rho_HT, fit.kl_H


def _no_fit(calibration: Calibration, slots: Sequence[Head]) -> tuple[Tensor, Tensor, Tensor]:
    zeros_NT = torch.zeros(len(slots), calibration.seq_len)
    return zeros_NT, zeros_NT, torch.zeros(len(slots))


def _fill_quota(
    calibration: Calibration,
    fit: Fit,
    *,
    scores_LH: Tensor,
    ranking: Sequence[Head],
    quota: int,
    room: Counter[int],
    max_fit_kl: float,
    step: int,
    full: str = "is full",
) -> tuple[list[StaticHead], list[SkippedHead]]:
    """The first `quota` heads of the ranking that fit, with at most room[layer] of a layer, and those passed over.

    full: what is said of a layer without room.
    """
    room = room.copy()
    chosen: list[StaticHead] = []
    skipped: list[SkippedHead] = []
    waiting = deque(enumerate(ranking))
    while waiting and len(chosen) < quota:
        batch: list[tuple[int, Head]] = []
        room_left = room.copy()
        while waiting and len(batch) < min(quota - len(chosen), _FIT_CHUNK):
            rank, (layer, head) = waiting[0]
            if room[layer] <= 0:
                skipped.append(SkippedHead(layer, head, scores_LH[layer, head].item(), None, f"layer {layer} {full}"))
            elif room_left[layer] <= 0:
                # full only if all of the batch fit: decide after the fit
                break
            else:
                room_left[layer] -= 1
                batch.append((rank, (layer, head)))
            waiting.popleft()
        if not batch:
            break
        alpha_NT, rho_NT, kl_N = fit(calibration, [slot for _, slot in batch])
        for n, (rank, (layer, head)) in enumerate(batch):
            score, fit_kl = scores_LH[layer, head].item(), max(kl_N[n].item(), 0.0)
            if fit_kl > max_fit_kl:
                skipped.append(SkippedHead(layer, head, score, fit_kl, f"fit KL {fit_kl:.3f} nat > {max_fit_kl:g}"))
            else:
                chosen.append(
                    StaticHead(layer, head, alpha_NT[n].float(), rho_NT[n].float(), score, fit_kl, rank, step)
                )
                room[layer] -= 1
    return chosen, skipped


def _with_content(
    chosen: Sequence[StaticHead], content: str, calibration: Calibration, seed: int, dense: DenseSource | None
) -> list[StaticHead]:
    """The chosen heads with their final pattern: its KL, if it is not the fit to the mean, and its certificate."""
    if not chosen or content == PRUNE:
        return list(chosen)
    if dense is not None and content in DENSE_CONTENTS:
        patterns = dense([(head.layer, head.head) for head in chosen], content)
        kls = patterns.kl_N.tolist()
        return [
            dataclasses.replace(head, p_TT=p_TT, fit_kl=kl)
            for head, p_TT, kl in zip(chosen, patterns.p_NTT, kls, strict=True)
        ]
    alpha_NT, rho_NT = torch.stack([h.alpha_T for h in chosen]), torch.stack([h.rho_T for h in chosen])
    kls = [head.fit_kl for head in chosen]
    if content != "mean":
        slots = [(head.layer, head.head) for head in chosen]
        alpha_NT, rho_NT = (x.float() for x in content_parameters(content, calibration, slots, seed=seed))
        index = tuple(torch.tensor(slots).T)
        masses = calibration.column_mass_LHT[index], calibration.diagonal_mass_LHT[index]
        kls = compact_kl(alpha_NT, rho_NT, *masses, calibration.neg_entropy_LH[index]).tolist()
    errors = prepare_pattern(alpha_NT, rho_NT).error_HP[:, PATHS.index("fft")].tolist()
    return [
        dataclasses.replace(head, alpha_T=alpha_T, rho_T=rho_T, fit_kl=kl, fft_error=error)
        for head, alpha_T, rho_T, kl, error in zip(chosen, alpha_NT, rho_NT, kls, errors, strict=True)
    ]


def _check_dense(content: str, num_heads: int, T: int, limit_gib: float, dense: DenseSource | None) -> None:
    if excess := dense_excess(content, num_heads, T, limit_gib):
        raise ValueError(excess)
    if dense is None:
        raise ValueError(
            f"content {content} is a T x T matrix a head, which statistics do not hold: it is taken from the model in "
            f'training (saf.content = "{content}")'
        )


def _report_shortfall(
    missing: int, target: int, rate: float, skipped: Sequence[SkippedHead], max_fit_kl: float, on_shortfall: str
) -> None:
    num_unfit = sum(head.fit_kl is not None for head in skipped)
    message = (
        f"only {target - missing} of the {target} heads that rate {rate:g} asks for can be static: {num_unfit} do "
        f"not fit within {max_fit_kl:g} nat, {len(skipped) - num_unfit} are in full layers. "
        "Lower rate, raise max_fit_kl or max_per_layer, or set on_shortfall to warn"
    )
    if on_shortfall == "error":
        raise ValueError(message)
    logger.warning(message)


def _layer_cap(calibration: Calibration, max_per_layer: int | None) -> int:
    if max_per_layer is not None and max_per_layer < 0:
        raise ValueError(f"max_per_layer must not be negative, got {max_per_layer}")
    return calibration.num_heads if max_per_layer is None else max_per_layer


def _check_base(calibration: Calibration, base_heads: Sequence[StaticHead]) -> None:
    """The heads that are static must be those that the calibration saw as static."""
    planned = {(head.layer, head.head) for head in base_heads}
    seen = {(layer, head) for layer, head in (~calibration.live_LH).nonzero().tolist()}
    if planned != seen:
        difference = ", ".join(f"L{layer}H{head}" for layer, head in sorted(planned ^ seen))
        raise ValueError(f"the plan so far and the calibration disagree about which heads are static: {difference}")


def _check_list(heads: Sequence[Head], calibration: Calibration, quota: int) -> list[Head]:
    """A given list of heads must be live heads of the model, each once, as many as the rate asks for."""
    require_live(calibration, heads)
    if twice := [f"L{layer}H{head}" for (layer, head), count in Counter(heads).items() if count > 1]:
        raise ValueError(f"the list of heads names {', '.join(twice)} more than once")
    if len(heads) != quota:
        raise ValueError(f"the list of heads must name {quota} heads, as many as rate asks for, and names {len(heads)}")
    return list(heads)
