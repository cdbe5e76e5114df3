"""Values that make up for a frozen pattern: a static head's value projection, solved again by ridge regression.

With the pattern fixed a static head still owns its value projection W. On calibration data the live head gave
y = P x W^T; the frozen one gives P_fit x W^T. With z = P_fit x the rows that come nearest to the live output are

    argmin_W  |z W^T - y|^2 + strength * (tr(z^T z) / C) * |W - W_before|^2

The penalty is relative to the mean square of z, so that `strength` has no unit. Whether the new rows help is for the
caller to measure: keep them only if the held-out loss falls. Meant for heads frozen without further training.

Legend: B sequences, T time, C model dim, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saf_titan.ops import StaticPattern, prepare_pattern, static_mix
from saf_titan.saf.exchange import sum_over_ranks
from saf_titan.saf.plan import StaticHead, StaticPlan
from saf_titan.saf.watch import run_watched

Batch = TypeVar("Batch")


class CompensableAttention(Protocol):
    """An attention layer whose live heads can be watched.

    qkv_linear: a module called with x_BTC, whose `wv` is a linear map with one block of rows a head.
    inner_attention: gives o_BTHD for all heads in natural order.
    """

    qkv_linear: Any
    inner_attention: nn.Module


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


def compensated_values(
    attentions: Sequence[CompensableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    plan: StaticPlan,
    *,
    strength: float = 1e-3,
    group: dist.ProcessGroup | None = None,
) -> dict[tuple[int, int], Tensor]:
    """New value rows (D, C) of the heads that the plan's own event makes static, by (layer, head).

    To be called while those heads are still live; nothing is changed. Keeps a C x C matrix for each of the heads.

    Args:
        batches, forward, group: as in `calibrate`. One forward a batch.
        strength: of the ridge penalty, see `ValueRegression.solve`.

    Raises ValueError where heads share their values (grouped queries), and for patterns that are not compact.
    """
    if plan.is_dense:
        raise ValueError(f"values can be compensated for compact patterns alone, and the plan's are {plan.content}")
    watchers = [_HeadWatcher(attentions[head.layer], head) for head in plan.heads if head.step == plan.step]
    run_watched(watchers, batches, forward)
    rows = {}
    for watcher in watchers:
        regression, before_DC = watcher.regression, watcher.before_DC
        if regression is None or before_DC is None:
            raise ValueError("the values cannot be compensated without a forward through every layer with static heads")
        regression.gram_CC = sum_over_ranks(regression.gram_CC, group)
        regression.cross_CD = sum_over_ranks(regression.cross_CD, group)
        rows[watcher.head.layer, watcher.head.head] = regression.solve(before_DC.cpu(), strength=strength)
    return rows


class _HeadWatcher:
    """The regression of one head, fed by hooks on its layer."""

    def __init__(self, attention: CompensableAttention, head: StaticHead) -> None:
        self.attention, self.head = attention, head
        self.regression: ValueRegression | None = None
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
        if self.regression is None:
            device = o_BTHD.device
            alpha_HT, rho_HT = (x_T.unsqueeze(0).to(device) for x_T in (self.head.alpha_T, self.head.rho_T))
            self.regression = ValueRegression(prepare_pattern(alpha_HT, rho_HT), wv_XC.shape[1], D)
            self.before_DC = wv_XC.detach()[self.head.head * D : (self.head.head + 1) * D].clone()
        self.regression.add(self._x_BTC, o_BTHD[:, :, self.head.head])
        self._x_BTC = None
