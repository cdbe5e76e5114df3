"""Compensation: solve again, by ridge regression, the weights that only a static head uses.

A head that shares its values with no other head has a value projection W of its own. On calibration data the live head
gave y = P x W^T; the frozen one gives P_fit x W^T. With z = P_fit x, the rows that come nearest to the live output are

    argmin_W  |z W^T - y|^2 + strength * (tr(z^T z) / X) * |W - W_before|^2        (X: width of z)

Where query heads share their values v (grouped queries), other heads need the value rows as they are. Only the columns
of the output projection W_O belong to such a head alone. The same regression, with z = P_fit v and W_before the
identity, gives a matrix M (D, D) that brings the mixed values nearest to the live output; the new columns are W_O M.

The penalty is relative to the mean square of z, so that `strength` has no unit. It is chosen for each head by two-fold
cross-validation over sequences: rows solved on one half must bring the output nearer on the other. The caller must
measure whether the loss of the model falls by the new weights. Use this for heads that are frozen without further
training.

Legend: B sequences, T time, H query heads, K kv heads, C model dim, D head dim, X width of z (C for value rows, D for
output columns), N tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

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
    """An attention layer whose live heads can be observed by hooks.

    qkv_linear: a module called with x_BTC, whose `wv` is a linear map with one block of rows per kv head. Its bias, if
        any, stays: the rows of a pattern sum to 1, so the bias reaches the output as it is.
    inner_attention: called with (q, k, v_BTKD, ...), returns o_BTHD for all heads in natural order. Heads may share
        values (K < H), evenly grouped.
    wo: its weight (C, H * D) has a block of columns for each head.
    """

    qkv_linear: Any
    inner_attention: nn.Module
    wo: Any


@dataclass(frozen=True)
class NewWeights:
    """The weights that replace some of a head's weights."""

    part: Literal["v", "o"]
    """"v": its value rows; "o": its columns of the output projection."""
    block: Tensor
    """(D, C) for "v", (C, D) for "o"."""


STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1)
"""Ridge strengths to choose from."""


class ValueRegression:
    """Normal equations of the linear map after one head's pattern, added up over batches in float64."""

    def __init__(self, pattern: StaticPattern, input_dim: int, head_dim: int) -> None:
        """pattern: that of this head alone (H = 1). input_dim: X, the width of what the pattern mixes."""
        if pattern.num_heads != 1:
            raise ValueError(f"a regression is for one head, but the pattern has {pattern.num_heads}")
        device = pattern.alpha_HT.device
        self.pattern = pattern
        self.gram_XX = torch.zeros(input_dim, input_dim, dtype=torch.float64, device=device)
        self.cross_XD = torch.zeros(input_dim, head_dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, x_BTX: Tensor, y_BTD: Tensor) -> None:
        """Add a batch: x is the input of the pattern, y the output of the live head on it."""
        z_NX = static_mix(x_BTX.float().unsqueeze(2), self.pattern).squeeze(2).flatten(0, 1).double()
        self.gram_XX += z_NX.T @ z_NX
        self.cross_XD += z_NX.T @ y_BTD.flatten(0, 1).double()

    def __add__(self, other: ValueRegression) -> ValueRegression:
        """Return the equations of both sets of data, which have the same pattern."""
        both = copy(self)
        both.gram_XX, both.cross_XD = self.gram_XX + other.gram_XX, self.cross_XD + other.cross_XD
        return both

    def sum_over_ranks(self, group: dist.ProcessGroup | None) -> None:
        """Add up the equations of all ranks, in place; the sums are on the CPU."""
        self.gram_XX, self.cross_XD = sum_over_ranks(self.gram_XX, group), sum_over_ranks(self.cross_XD, group)

    def solve(self, w_DX: Tensor, *, strength: float = 1e-3) -> Tensor:
        """Return a new map (D, X) in the dtype of the old map `w_DX`. Raises ValueError unless strength is positive."""
        if strength <= 0:
            raise ValueError(f"the ridge strength must be positive, got {strength}")
        X = len(self.gram_XX)
        ridge = strength * self.gram_XX.trace() / X
        before_XD = w_DX.double().T
        penalised_XX = self.gram_XX + ridge * torch.eye(X, dtype=torch.float64, device=self.gram_XX.device)
        change_XD = torch.linalg.solve(penalised_XX, self.cross_XD - self.gram_XX @ before_XD)
        return (before_XD + change_XD).T.to(w_DX.dtype).contiguous()

    def excess(self, w_DX: Tensor) -> float:
        """Return the squared error of the output with this map, up to a constant of the data: compare maps by it."""
        rows_XD = w_DX.double().T
        return ((self.gram_XX @ rows_XD - 2 * self.cross_XD) * rows_XD).sum().item()


def cross_validated_rows(
    halves: tuple[ValueRegression, ValueRegression], w_DX: Tensor, strengths: Sequence[float] = STRENGTHS
) -> Tensor | None:
    """Return a map (D, X) solved on both halves, or None if the old map `w_DX` is at least as good.

    The chosen penalty has the least error when maps solved on one half are judged on the other.

    Raises ValueError if a half has no data.
    """
    if not all(half.gram_XX.any() for half in halves):
        raise ValueError(
            "compensation needs two sequences or more, because weights solved on one half are judged on the other"
        )

    def excess(strength: float) -> float:
        ways = zip(halves, reversed(halves), strict=True)
        return sum(judged.excess(solved.solve(w_DX, strength=strength)) for solved, judged in ways)

    errors = {strength: excess(strength) for strength in strengths}
    best = min(strengths, key=errors.__getitem__)
    if errors[best] >= sum(half.excess(w_DX) for half in halves):
        return None
    return (halves[0] + halves[1]).solve(w_DX, strength=best)


def compensated_weights(
    attentions: Sequence[CompensableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    plan: StaticPlan,
    *,
    group: dist.ProcessGroup | None = None,
) -> dict[tuple[int, int], NewWeights]:
    """Return new weights of the heads that the plan's last event makes static, by (layer, head).

    Call this while those heads are still live; it changes nothing. It keeps two X x X matrices for each of the heads.
    A head is left out if no penalty improves its output on sequences that the weights were not solved on.

    Args:
        batches, forward, group: as in `calibrate`. Runs one forward per batch.

    Raises ValueError for patterns that are not compact, and for fewer than two sequences.
    """
    if not plan.is_compact:
        raise ValueError(f"only heads with compact patterns can be compensated, but the plan's are {plan.content}")
    # every other rank begins with the second half, so that ranks with a single sequence fill both halves together
    first_half = HeadExchange(group).rank % 2
    heads = [head for head in plan.heads if head.step == plan.step]
    watchers = [_HeadWatcher(attentions[head.layer], head, first_half) for head in heads]
    run_watched(watchers, batches, forward)
    weights = {}
    for watcher in watchers:
        halves, before_DX = watcher.halves, watcher.before_DX
        if halves is None or before_DX is None:
            raise ValueError("heads cannot be compensated without a forward through every layer with static heads")
        for half in halves:
            half.sum_over_ranks(group)
        if (new_DX := cross_validated_rows(halves, before_DX.cpu())) is not None:
            weights[watcher.head.layer, watcher.head.head] = watcher.weights(new_DX)
    # ranks on different processors may round, and so decide, differently
    return of_first_rank(weights, group)


class _HeadWatcher:
    """Two regressions of one head, on alternate sequences, which hooks on its layer feed."""

    def __init__(self, attention: CompensableAttention, head: StaticHead, first_half: int) -> None:
        """first_half: index (0 or 1) of the cross-validation half that the first sequence belongs to."""
        self.attention, self.head = attention, head
        self._next_half = first_half
        self.halves: tuple[ValueRegression, ValueRegression] | None = None
        self.before_DX: Tensor | None = None
        self._output_CD: Tensor | None = None
        """The head's columns of the output projection, if it shares its values."""
        self._x_BTC: Tensor | None = None

    def register(self) -> list[RemovableHandle]:
        return [
            self.attention.qkv_linear.register_forward_pre_hook(self._on_projections),
            self.attention.inner_attention.register_forward_hook(self._on_inner_attention),
        ]

    def weights(self, new_DX: Tensor) -> NewWeights:
        """Return a solved map as weights of the model."""
        if self._output_CD is None:
            return NewWeights("v", new_DX)
        return NewWeights("o", (self._output_CD.double() @ new_DX.double()).to(self._output_CD.dtype))

    def _on_projections(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._x_BTC = args[0]

    def _on_inner_attention(self, module: nn.Module, args: tuple[Tensor, ...], o_BTHD: Tensor) -> None:
        assert self._x_BTC is not None
        x_BTX, head, (H, D) = self._x_BTC, self.head.head, o_BTHD.shape[2:]
        block, y_BTD = slice(head * D, (head + 1) * D), o_BTHD[:, :, head]
        # the weights are read inside the forward, where FSDP has gathered them
        projection = self.attention.qkv_linear.wv
        shares_values = len(projection.weight) != H * D
        if shares_values:
            v_BTKD = args[2]
            x_BTX = v_BTKD[:, :, head // (H // v_BTKD.shape[2])]
        elif (bias_X := getattr(projection, "bias", None)) is not None:
            y_BTD = y_BTD - bias_X.detach()[block]
        if self.halves is None:
            self._begin(projection.weight.detach()[block], x_BTX, block, shares_values=shares_values)
        assert self.halves is not None
        for x_TX, y_TD in zip(x_BTX, y_BTD, strict=True):
            self.halves[self._next_half].add(x_TX.unsqueeze(0), y_TD.unsqueeze(0))
            self._next_half = 1 - self._next_half
        self._x_BTC = None

    def _begin(self, value_rows: Tensor, x_BTX: Tensor, block: slice, *, shares_values: bool) -> None:
        """Keep the present weights, and make empty equations."""
        D = block.stop - block.start
        if shares_values:
            self._output_CD = self.attention.wo.weight.detach()[:, block].cpu().clone()
            self.before_DX = torch.eye(D)
        else:
            self.before_DX = value_rows.clone()
        pattern = prepare_pattern(*(x_T.unsqueeze(0).to(x_BTX.device) for x_T in self.head.pattern.vectors))
        X = x_BTX.shape[-1]
        self.halves = ValueRegression(pattern, X, D), ValueRegression(pattern, X, D)
