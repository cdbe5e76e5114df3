"""Compensated values: solve the value projection of a static head again, by ridge regression.

With the pattern fixed a static head still owns its value projection W. On calibration data the live head gave
y = P x W^T; the frozen one gives P_fit x W^T. With z = P_fit x the rows that come nearest to the live output are

    argmin_W  |z W^T - y|^2 + strength * (tr(z^T z) / C) * |W - W_before|^2

The penalty is relative to the mean square of z, so that `strength` has no unit. It is chosen for each head by two-fold
cross-validation over sequences: rows solved on one half must bring the output nearer on the other. The caller must
measure whether the model gains by the new rows. This is for heads that are frozen without further training.

Legend: B sequences, T time, C model dim, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saf_titan.ops import StaticPattern, prepare_pattern, static_mix
from saf_titan.saf.calibrate.exchange import HeadExchange, of_first_rank, sum_over_ranks
from saf_titan.saf.calibrate.watch import run_watched
from saf_titan.saf.plan.plan import StaticHead, StaticPlan

Batch = TypeVar("Batch")


class CompensableAttention(Protocol):
    """An attention layer whose live heads can be watched.

    qkv_linear: a module called with x_BTC, whose `wv` is a linear map with one block of rows a head. Its bias, if
        any, stays: the rows of a pattern sum to 1, so the bias reaches the output as it is.
    inner_attention: gives o_BTHD for all heads in natural order.
    """

    qkv_linear: Any
    inner_attention: nn.Module


STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1)
"""Ridge strengths to choose from."""


class ValueRegression:
    """Normal equations of one head's value rows, gathered a batch at a time in float64."""

    def __init__(self, pattern: StaticPattern, model_dim: int, head_dim: int) -> None:
        """pattern: of this head alone (H = 1)."""
        if pattern.num_heads != 1:
            raise ValueError(f"a regression is for one head, but the pattern has {pattern.num_heads}")
        device = pattern.alpha_HT.device
        self.pattern = pattern
        self.gram_CC = torch.zeros(model_dim, model_dim, dtype=torch.float64, device=device)
        self.cross_CD = torch.zeros(model_dim, head_dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, x_BTC: Tensor, y_BTD: Tensor) -> None:
        """Inputs of the value projection, and the live head's output on them."""
        z_NC = static_mix(x_BTC.float().unsqueeze(2), self.pattern).squeeze(2).flatten(0, 1).double()
        self.gram_CC += z_NC.T @ z_NC
        self.cross_CD += z_NC.T @ y_BTD.flatten(0, 1).double()

    def __add__(self, other: ValueRegression) -> ValueRegression:
        """The equations of both data; the pattern is the same."""
        both = copy(self)
        both.gram_CC, both.cross_CD = self.gram_CC + other.gram_CC, self.cross_CD + other.cross_CD
        return both

    def sum_over_ranks(self, group: dist.ProcessGroup | None) -> None:
        """The equations of the data of all ranks, on the CPU."""
        self.gram_CC, self.cross_CD = sum_over_ranks(self.gram_CC, group), sum_over_ranks(self.cross_CD, group)

    def solve(self, wv_DC: Tensor, *, strength: float = 1e-3) -> Tensor:
        """New value rows (D, C) in the dtype of the old ones. Raises ValueError unless strength is positive."""
        if strength <= 0:
            raise ValueError(f"the ridge strength must be positive, got {strength}")
        C = len(self.gram_CC)
        ridge = strength * self.gram_CC.trace() / C
        before_CD = wv_DC.double().T
        penalised_CC = self.gram_CC + ridge * torch.eye(C, dtype=torch.float64, device=self.gram_CC.device)
        change_CD = torch.linalg.solve(penalised_CC, self.cross_CD - self.gram_CC @ before_CD)
        return (before_CD + change_CD).T.to(wv_DC.dtype).contiguous()

    def excess(self, wv_DC: Tensor) -> float:
        """Squared error of the output with these rows, up to a constant of the data: for comparing rows."""
        rows_CD = wv_DC.double().T
        return ((self.gram_CC @ rows_CD - 2 * self.cross_CD) * rows_CD).sum().item()


def cross_validated_rows(
    halves: tuple[ValueRegression, ValueRegression], wv_DC: Tensor, strengths: Sequence[float] = STRENGTHS
) -> Tensor | None:
    """Rows (D, C) solved on both halves with the strength that errs least across them; None if the old rows do.

    Raises ValueError if a half has no data.
    """
    if not all(half.gram_CC.any() for half in halves):
        raise ValueError(
            "values can be compensated on two sequences or more: the penalty is chosen on one half of them"
        )

    def excess(strength: float) -> float:
        ways = zip(halves, reversed(halves), strict=True)
        return sum(judged.excess(solved.solve(wv_DC, strength=strength)) for solved, judged in ways)

    errors = {strength: excess(strength) for strength in strengths}
    best = min(strengths, key=errors.__getitem__)
    if errors[best] >= sum(half.excess(wv_DC) for half in halves):
        return None
    return (halves[0] + halves[1]).solve(wv_DC, strength=best)


def compensated_values(
    attentions: Sequence[CompensableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    plan: StaticPlan,
    *,
    group: dist.ProcessGroup | None = None,
) -> dict[tuple[int, int], Tensor]:
    """New value rows (D, C) of heads that the plan's own event makes static, by (layer, head).

    To be called while those heads are still live; nothing is changed. Keeps two C x C matrices for each of the heads.
    Heads whose output no strength brings nearer on sequences it was not solved on are left out.

    Args:
        batches, forward, group: as in `calibrate`. One forward a batch.

    Raises ValueError where heads share their values (grouped queries), for patterns that are not compact, and for less
    than two sequences.
    """
    if not plan.is_compact:
        raise ValueError(f"values can be compensated for compact patterns alone, and the plan's are {plan.content}")
    # ranks with a single sequence make up both halves between them
    first_half = HeadExchange(group).rank % 2
    heads = [head for head in plan.heads if head.step == plan.step]
    watchers = [_HeadWatcher(attentions[head.layer], head, first_half) for head in heads]
    run_watched(watchers, batches, forward)
    rows = {}
    for watcher in watchers:
        halves, before_DC = watcher.halves, watcher.before_DC
        if halves is None or before_DC is None:
            raise ValueError("the values cannot be compensated without a forward through every layer with static heads")
        for half in halves:
            half.sum_over_ranks(group)
        if (rows_DC := cross_validated_rows(halves, before_DC.cpu())) is not None:
            rows[watcher.head.layer, watcher.head.head] = rows_DC
    # ranks on different processors may round, and so decide, differently
    return of_first_rank(rows, group)


class _HeadWatcher:
    """The regressions of one head on every other sequence and on those between, fed by hooks on its layer."""

    def __init__(self, attention: CompensableAttention, head: StaticHead, first_half: int) -> None:
        """first_half: index (0 or 1) of the cross-validation half that the first sequence belongs to."""
        self.attention, self.head = attention, head
        self._next_half = first_half
        self.halves: tuple[ValueRegression, ValueRegression] | None = None
        self.before_DC: Tensor | None = None
        self._x_BTC: Tensor | None = None

    def register(self) -> list[RemovableHandle]:
        return [
            self.attention.qkv_linear.register_forward_pre_hook(self._on_projections),
            self.attention.inner_attention.register_forward_hook(self._on_inner_attention),
        ]

    def _on_projections(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._x_BTC = args[0]

    def _on_inner_attention(self, module: nn.Module, args: tuple[Tensor, ...], o_BTHD: Tensor) -> None:
        assert self._x_BTC is not None
        H, D = o_BTHD.shape[2:]
        # inside the forward: the weight is whole, on any sharding
        wv_XC = self.attention.qkv_linear.wv.weight
        if len(wv_XC) != H * D:
            raise ValueError(
                "values that several heads share cannot be solved for one of them: no compensation with GQA"
            )
        if self.halves is None:
            device = o_BTHD.device
            pattern = prepare_pattern(*(x_T.unsqueeze(0).to(device) for x_T in self.head.pattern.vectors))
            self.halves = ValueRegression(pattern, wv_XC.shape[1], D), ValueRegression(pattern, wv_XC.shape[1], D)
            self.before_DC = wv_XC.detach()[self.head.head * D : (self.head.head + 1) * D].clone()
        y_BTD = o_BTHD[:, :, self.head.head]
        if (bias_X := getattr(self.attention.qkv_linear.wv, "bias", None)) is not None:
            y_BTD = y_BTD - bias_X.detach()[self.head.head * D : (self.head.head + 1) * D]
        for x_TC, y_TD in zip(self._x_BTC, y_BTD, strict=True):
            self.halves[self._next_half].add(x_TC.unsqueeze(0), y_TD.unsqueeze(0))
            self._next_half = 1 - self._next_half
        self._x_BTC = None
