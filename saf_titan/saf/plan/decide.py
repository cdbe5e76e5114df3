"""Decide which heads a freeze makes static: rank them, fit patterns, and keep heads that fit until there are enough.

Legend: L layers, H query heads, N heads of a list, T time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from saf_titan.heads.counts import head_count
from saf_titan.heads.names import Head, head_name
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.content import CompactContent, DenseContent
from saf_titan.saf.fit.dense import DensePatterns
from saf_titan.saf.fit.dense_memory import dense_excess
from saf_titan.saf.fit.fit import compact_kl, fit_heads, head_statistics
from saf_titan.saf.fit.pattern import CompactPattern, DensePattern, PrunedPattern, certified
from saf_titan.saf.fit.registry import CONTENTS
from saf_titan.saf.plan.plan import SkippedHead, StaticHead, StaticPlan
from saf_titan.saf.plan.settings import PlanSettings
from saf_titan.saf.select.ranking import ranking, require_live
from saf_titan.saf.select.selector import Ranking

logger = logging.getLogger(__name__)

# bounds the memory of the fit, not its result
_FIT_CHUNK = 32

DenseSource = Callable[[Sequence[Head], str], DensePatterns]
"""Makes the patterns of (layer, head) slots for a dense content; see `dense.dense_patterns`."""


def make_plan(
    calibration: Calibration,
    settings: PlanSettings | None = None,
    *,
    step: int = 0,
    base_plan: StaticPlan | None = None,
    dense: DenseSource | None = None,
) -> StaticPlan:
    """Choose the heads that become static and their patterns.

    Heads are tried in the order of the selector. A head whose compact fit is farther than `max_fit_kl` (nats per row)
    from its mean attention is skipped, and the next candidate takes its place. The heads do not depend on the content,
    so that contents can be compared on the same heads. The one exception is the content "prune": it fits nothing, so it
    skips no head.

    Args:
        calibration: statistics of the live heads, with the scores of the selector.
        settings: which heads, how many, and what takes their place; None for the defaults.
        step: training step of the event, which the plan records.
        base_plan: the plan so far (a ramp): its heads stay and count towards the rate.
        dense: makes the patterns of a dense content for heads of the model that was calibrated.

    Returns the plan of all static heads, those of `base_plan` included.
    Raises ValueError if too few heads can be static (unless `on_shortfall` is "warn"), if a dense content takes too
    much memory or `dense` is not given for it, and if `base_plan` and the calibration disagree about which heads are
    static already.
    """
    settings = settings or PlanSettings()
    content = CONTENTS[settings.content]
    if base_plan is not None and base_plan.T_fit != calibration.seq_len:
        raise ValueError(
            f"the static heads so far are fitted to sequences of {base_plan.T_fit} tokens, but the statistics are of "
            f"{calibration.seq_len}: calibrate with sequences of {base_plan.T_fit} tokens (--length {base_plan.T_fit})"
        )
    base_heads = base_plan.heads if base_plan else ()
    _check_base(calibration, base_heads)
    target = head_count(calibration.live_LH.numel(), settings.rate, settings.rounding)
    if isinstance(content, DenseContent):
        _check_dense(settings, max(target, len(base_heads)), calibration.seq_len, dense)

    order = ranking(calibration, settings.selector, settings)
    filling = _Filling(calibration, settings, step, quota=target - len(base_heads))
    if order.is_list:
        _check_list(order, calibration, filling.quota)
    room = Counter(dict.fromkeys(range(calibration.num_layers), settings.max_per_layer or calibration.num_heads))
    room.subtract(head.layer for head in base_heads)
    if order.matched is None:
        chosen, skipped = filling.fill(order, room)
        reasons = skipped
    else:
        # the other ranking decides the number of heads of each layer, so it also explains why there are too few
        by_other, reasons = filling.fill(order.matched, room)
        share = Counter(head.layer for head in by_other)
        chosen, skipped = filling.fill(order, share, full=f"has as many as by {order.matched.name}")
    if len(chosen) < filling.quota:
        _report_shortfall(filling.quota - len(chosen), target, settings, reasons, is_list=order.is_list)

    plan = StaticPlan(
        heads=tuple(sorted(_with_content(chosen, calibration, settings, dense), key=lambda head: head.slot)),
        skipped=tuple(skipped),
        step=step,
        selector=settings.selector,
        content=settings.content,
        rate=settings.rate,
        T_fit=calibration.seq_len,
        record=calibration.record,
    )
    return base_plan.extended_by(plan) if base_plan else plan


@dataclasses.dataclass(frozen=True)
class _Filling:
    """Takes heads of a ranking one after the other until the quota is filled."""

    calibration: Calibration
    settings: PlanSettings
    step: int
    quota: int

    def fill(
        self, order: Ranking, room: Counter[int], *, full: str = "is full"
    ) -> tuple[list[StaticHead], list[SkippedHead]]:
        """Return the first heads of the ranking that fit, at most room[layer] of a layer, and the heads it skipped.

        full: what the reason for a skipped head says of a layer without room.
        """
        room = room.copy()
        chosen: list[StaticHead] = []
        skipped: list[SkippedHead] = []
        waiting = deque(enumerate(order.heads))
        while waiting and len(chosen) < self.quota:
            batch: list[tuple[int, Head]] = []
            room_left = room.copy()
            while waiting and len(batch) < min(self.quota - len(chosen), _FIT_CHUNK):
                rank, (layer, head) = waiting[0]
                if room[layer] <= 0:
                    score = order.scores_LH[layer, head].item()
                    skipped.append(SkippedHead(layer, head, score, None, f"layer {layer} {full}"))
                elif room_left[layer] <= 0:
                    # whether the layer becomes full depends on how many of its heads in the batch fit: fit them first
                    break
                else:
                    room_left[layer] -= 1
                    batch.append((rank, (layer, head)))
                waiting.popleft()
            if not batch:
                break
            patterns, kl_N = self._fit([slot for _, slot in batch])
            for (rank, (layer, head)), pattern, kl in zip(batch, patterns, kl_N, strict=True):
                score, limit = order.scores_LH[layer, head].item(), self.settings.max_fit_kl
                if kl > limit:
                    skipped.append(SkippedHead(layer, head, score, kl, f"fit KL {kl:.3f} nat > {limit:g}"))
                else:
                    chosen.append(StaticHead(layer, head, pattern, score, kl, rank, self.step))
                    room[layer] -= 1
        return chosen, skipped

    def _fit(self, slots: Sequence[Head]) -> tuple[Sequence[CompactPattern | PrunedPattern], list[float]]:
        """Fit each slot; return its pattern and KL. Content prune fits nothing: its KL is 0."""
        if not CONTENTS[self.settings.content].is_fitted:
            return [PrunedPattern(self.calibration.seq_len)] * len(slots), [0.0] * len(slots)
        fit = fit_heads(self.calibration, slots, method=self.settings.fit_method)
        patterns = [
            CompactPattern(alpha_T, rho_T)
            for alpha_T, rho_T in zip(fit.alpha_HT.float(), fit.rho_HT.float(), strict=True)
        ]
        return patterns, fit.kl_H.clamp(min=0.0).tolist()


def _with_content(
    chosen: Sequence[StaticHead], calibration: Calibration, settings: PlanSettings, dense: DenseSource | None
) -> list[StaticHead]:
    """Return the chosen heads with their final patterns, error bounds, and the KL of patterns other than the fit."""
    content, slots = CONTENTS[settings.content], [head.slot for head in chosen]
    if not chosen or not content.is_fitted:
        return list(chosen)
    if isinstance(content, DenseContent):
        assert dense is not None
        matrices = dense(slots, content.name)
        return [
            dataclasses.replace(head, pattern=DensePattern(p_TT, _fit_of(head)), fit_kl=kl)
            for head, p_TT, kl in zip(chosen, matrices.p_NTT, matrices.kl_N.tolist(), strict=True)
        ]
    assert isinstance(content, CompactContent)
    kls = [head.fit_kl for head in chosen]
    alpha_NT, rho_NT = _stacked(chosen)
    if content.parameters is not None:
        alpha_NT, rho_NT = (x.float() for x in content.parameters(calibration, slots, settings.seed))
        kls = compact_kl(alpha_NT, rho_NT, *head_statistics(calibration, slots)).tolist()
    return [
        dataclasses.replace(head, pattern=pattern, fit_kl=kl)
        for head, pattern, kl in zip(chosen, certified(alpha_NT, rho_NT), kls, strict=True)
    ]


def _fit_of(head: StaticHead) -> CompactPattern:
    assert isinstance(head.pattern, CompactPattern)
    return head.pattern


def _stacked(heads: Sequence[StaticHead]) -> tuple[Tensor, Tensor]:
    alpha_NT, rho_NT = (torch.stack(vectors) for vectors in zip(*(head.pattern.vectors for head in heads), strict=True))
    return alpha_NT, rho_NT


def _check_dense(settings: PlanSettings, num_heads: int, T: int, dense: DenseSource | None) -> None:
    if excess := dense_excess(settings.content, num_heads, T, settings.max_dense_gib):
        raise ValueError(excess)
    if dense is None:
        raise ValueError(
            f"content {settings.content} needs a T x T matrix for each head, which statistics do not hold: set "
            f'saf.content = "{settings.content}" in a training run, which measures it on the model'
        )


def _report_shortfall(
    missing: int, target: int, settings: PlanSettings, skipped: Sequence[SkippedHead], *, is_list: bool
) -> None:
    num_unfit = sum(head.fit_kl is not None for head in skipped)
    message = (
        f"only {target - missing} of the {target} heads that rate {settings.rate:g} asks for can be static: "
        f"{num_unfit} do not fit within {settings.max_fit_kl:g} nat, {len(skipped) - num_unfit} are in full layers. "
        "Lower rate, raise max_fit_kl or max_per_layer, or set on_shortfall to warn"
    )
    if is_list or settings.on_shortfall == "error":
        raise ValueError(message)
    logger.warning(message)


def _check_base(calibration: Calibration, base_heads: Sequence[StaticHead]) -> None:
    """Require that the heads of the base plan are those that were static in the calibration."""
    planned = {head.slot for head in base_heads}
    seen = {(layer, head) for layer, head in (~calibration.live_LH).nonzero().tolist()}
    if planned != seen:
        difference = ", ".join(head_name(layer, head) for layer, head in sorted(planned ^ seen))
        raise ValueError(
            f"the plan so far and the calibration disagree about which heads are static: {difference}; calibrate the "
            "model in which exactly the heads of the plan are static"
        )


def _check_list(order: Ranking, calibration: Calibration, quota: int) -> None:
    """Require that a given list names live heads of the model, each once, as many as the rate asks for."""
    heads = order.heads
    require_live(calibration, heads)
    if twice := [head_name(*slot) for slot, count in Counter(heads).items() if count > 1]:
        raise ValueError(f"the list of heads names {', '.join(twice)} more than once")
    if len(heads) != quota:
        raise ValueError(f"the list of heads must name {quota} heads, as many as rate asks for, but names {len(heads)}")
