"""Attention for a model of your own: everything between the input projection and the output projection of a layer.

Legend: B batch, T time, C model width, H query heads, K kv heads, U live heads, S static heads, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saf_titan.heads.kv_groups import UnusedHeads, unused_heads
from saf_titan.ops import StaticPattern, mixed_attention, prepare_pattern
from saf_titan.saf.calibrate.capture import CaptureFn
from saf_titan.saf.plan.plan import StaticPlan

Projection = nn.Linear | tuple[nn.Linear, nn.Linear, nn.Linear]
"""One linear layer whose rows give queries, keys and values, in this order; or one layer for each of them."""
Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Applies rotary positions or norms to queries (B, T, U, D) and keys (B, T, K, D) before they are scored."""

_STATE = "static_heads"


class FreezableHeads(nn.Module):
    """Causal attention, without parameters, whose heads a `Freezer` can make static.

    While every head is live it adds nothing to the state dict, so that ordinary checkpoints do not change. Afterwards
    it adds the plan of the layer's static heads, so that frozen weights cannot be loaded without their patterns.
    """

    def __init__(self, num_heads: int, *, num_kv_heads: int | None = None, scale: float | None = None) -> None:
        """
        Args:
            num_heads: number of query heads.
            num_kv_heads: number of kv heads, each shared by equally many query heads; None for `num_heads`.
            scale: factor of the scores; None for 1 / sqrt(D).

        Raises ValueError if `num_kv_heads` does not divide `num_heads`.
        """
        super().__init__()
        self.num_heads, self.num_kv_heads, self.scale = num_heads, num_kv_heads or num_heads, scale
        if num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads = {num_kv_heads} must divide num_heads = {num_heads}")
        self.capture: CaptureFn | None = None
        self.projections: tuple[nn.Linear, ...] = ()
        """The projections of the latest captured forward; a tuple, so that they do not become submodules."""
        self.plan: StaticPlan | None = None
        """The plan of this layer's static heads, set by the freezer; None while all heads are live."""
        self.heads_version = 0
        self._set((), None, is_pruned=False)

    def forward(self, x_BTC: Tensor, projection: Projection, rotate: Rotate | None = None) -> Tensor:
        """Project x (B, T, C), attend, and return the heads' outputs (B, T, H * D), for the output projection.

        Rows of the projection that only static heads would use are not computed. Raises ValueError for a sequence
        longer than the patterns, and for a projection whose shape does not fit the heads.
        """
        projections = projection if isinstance(projection, tuple) else (projection,)
        q_BTUD, k_BTKD, v_BTKD = self._project(x_BTC, projections)
        if q_BTUD is not None and k_BTKD is not None:
            if rotate is not None:
                q_BTUD, k_BTKD = rotate(q_BTUD, k_BTKD)
            if self.capture is not None:
                self.projections = projections
                self.capture(q_BTUD, k_BTKD, self.live_heads, self.scale, self._kv_index)
        if self._is_pruned:
            return self._attend_live(q_BTUD, k_BTKD, v_BTKD)
        y_BTHD = mixed_attention(
            q_BTUD,
            k_BTKD,
            v_BTKD,
            live_heads=self._on(x_BTC.device, "live"),
            static_heads=self._on(x_BTC.device, "static"),
            pattern=self._pattern_on(x_BTC.device),
            scale=self.scale,
        )
        return y_BTHD.flatten(2)

    def unused_rows(self) -> list[tuple[Tensor, Tensor]]:
        """Return each weight and bias of `projections` with the numbers (int64) of the rows that are no longer used."""
        unused = self.unused()
        H, K = self.num_heads, self.num_kv_heads
        rows: list[tuple[Tensor, Tensor]] = []
        D = self._head_dim(self.projections)
        # a fused matrix holds the rows of the queries, then those of the keys, then those of the values
        is_fused = len(self.projections) == 1
        linears, offsets = (self.projections * 3, (0, H, H + K)) if is_fused else (self.projections, (0, 0, 0))
        for linear, offset, blocks in zip(linears, offsets, (unused.q, unused.k, unused.v), strict=True):
            index = _block_rows([offset + block for block in blocks], D)
            rows += [(parameter, index) for parameter in (linear.weight, linear.bias) if parameter is not None]
        return rows

    def unused(self) -> UnusedHeads:
        """Return the heads whose queries, keys or values are no longer used, because heads are static."""
        return unused_heads(
            self.static_heads,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            frees_values=self._is_pruned,
        )

    # installing a plan calls one of the following methods; see `saf.fit.pattern`

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None:
        """Make exactly `heads` (ascending) static, with patterns alpha and rho, fp32 [S, T_fit]."""
        self._set(heads, prepare_pattern(alpha_ST, rho_ST), is_pruned=False)

    def set_dense(self, heads: tuple[int, ...], p_STT: Tensor) -> None:
        """Raise ValueError: this layer does not support patterns that are matrices."""
        raise ValueError("patterns that are matrices work only in runs of saf_titan.train; choose another content")

    def set_pruned(self, heads: tuple[int, ...]) -> None:
        """Remove exactly `heads` (ascending): their output becomes zero."""
        self._set(heads, None, is_pruned=True)

    def set_live(self) -> None:
        """Make every head live again."""
        self._set((), None, is_pruned=False)

    def _set(self, heads: tuple[int, ...], pattern: StaticPattern | None, *, is_pruned: bool) -> None:
        self.static_heads, self._is_pruned = heads, is_pruned
        self.live_heads = tuple(head for head in range(self.num_heads) if head not in heads)
        unused = self.unused()
        self._kept_k = tuple(head for head in range(self.num_kv_heads) if head not in unused.k)
        group = self.num_heads // self.num_kv_heads
        self._kv_index = tuple(self._kept_k.index(head // group) for head in self.live_heads)
        # not a buffer: a cast of the model would overflow the pattern's factors, and DDP would send it at every step
        self._pattern = pattern
        self._index: dict[str, Tensor] = {}
        self.heads_version += 1

    def _project(
        self, x_BTC: Tensor, projections: tuple[nn.Linear, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return the queries of the live heads, the keys that they read, and all values."""
        D, H, K = self._head_dim(projections), self.num_heads, self.num_kv_heads
        if len(projections) == 1:
            blocks = (*self.live_heads, *(H + head for head in self._kept_k), *range(H + K, H + 2 * K))
            joined = F.linear(x_BTC, *self._kept_rows(projections[0], "qkv", blocks, D))
            q, k, v = joined.split([len(self.live_heads) * D, len(self._kept_k) * D, K * D], dim=-1)
        else:
            q, k, v = (
                F.linear(x_BTC, *self._kept_rows(linear, kind, blocks, D))
                for linear, kind, blocks in zip(
                    projections, "qkv", (self.live_heads, self._kept_k, tuple(range(K))), strict=True
                )
            )
        q_BTHD, k_BTKD, v_BTKD = (x.unflatten(-1, (-1, D)) for x in (q, k, v))
        return (q_BTHD, k_BTKD, v_BTKD) if self.live_heads else (None, None, v_BTKD)

    def _kept_rows(self, linear: nn.Linear, kind: str, blocks: tuple[int, ...], D: int) -> tuple[Tensor, Tensor | None]:
        if not self.static_heads:
            return linear.weight, linear.bias
        key = f"{kind} rows"
        if key not in self._index or self._index[key].device != linear.weight.device:
            self._index[key] = _block_rows(blocks, D).to(linear.weight.device)
        index = self._index[key]
        return linear.weight.index_select(0, index), None if linear.bias is None else linear.bias.index_select(0, index)

    def _head_dim(self, projections: tuple[nn.Linear, ...]) -> int:
        H, K = self.num_heads, self.num_kv_heads
        if not all(isinstance(part, nn.Linear) for part in projections):
            names = ", ".join(type(part).__name__ for part in projections)
            raise ValueError(f"the projection must be torch.nn.Linear, one or three of them, got {names}")
        rows = [part.out_features for part in projections]
        D = sum(rows) // (H + 2 * K)
        if rows not in ([(H + 2 * K) * D], [H * D, K * D, K * D]) or not D:
            raise ValueError(f"projections with {rows} rows do not hold {H} query heads and {K} kv heads of one width")
        return D

    def _attend_live(self, q_BTUD: Tensor | None, k_BTKD: Tensor | None, v_BTKD: Tensor) -> Tensor:
        """Attend in a layer with pruned heads, and fill the outputs of the pruned heads with zeros."""
        B, T, _, D = v_BTKD.shape
        y_BTHD = v_BTKD.new_zeros(B, T, self.num_heads, D)
        if q_BTUD is None or k_BTKD is None:
            return y_BTHD.flatten(2)
        index = torch.tensor(self._kv_index, device=v_BTKD.device)
        kept = torch.tensor(self._kept_k, device=v_BTKD.device)
        k_BTUD, v_BTUD = k_BTKD.index_select(2, index), v_BTKD.index_select(2, kept).index_select(2, index)
        q_BUTD, k_BUTD, v_BUTD = (x_BTUD.transpose(1, 2) for x_BTUD in (q_BTUD, k_BTUD, v_BTUD))
        y_BUTD = F.scaled_dot_product_attention(q_BUTD, k_BUTD, v_BUTD, is_causal=True, scale=self.scale)
        y_BTUD = y_BUTD.transpose(1, 2)
        return y_BTHD.index_copy(2, torch.tensor(self.live_heads, device=v_BTKD.device), y_BTUD).flatten(2)

    def _on(self, device: torch.device, kind: str) -> Tensor:
        if kind not in self._index or self._index[kind].device != device:
            heads = self.live_heads if kind == "live" else self.static_heads
            self._index[kind] = torch.tensor(heads, dtype=torch.int64, device=device)
        return self._index[kind]

    def _pattern_on(self, device: torch.device) -> StaticPattern | None:
        if self._pattern is not None and self._pattern.alpha_HT.device != device:
            self._pattern = self._pattern.to(device)
        return self._pattern

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.plan is not None:
            destination[prefix + _STATE] = torch.frombuffer(bytearray(self.plan.to_bytes()), dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + _STATE)
        plan = None
        if saved is not None:
            plan = StaticPlan.from_bytes(saved.cpu().numpy().tobytes(), source=f"the entry {prefix + _STATE}")
        self.install(plan)

    def install(self, plan: StaticPlan | None) -> None:
        """Make exactly the heads of `plan`, a plan of this layer, static; None makes every head live.

        Raises ValueError for heads that the layer does not have.
        """
        if plan is None or not plan.heads:
            self.set_live()
            self.plan = None
            return
        heads = tuple(head.head for head in plan.heads)
        if heads[-1] >= self.num_heads:
            raise ValueError(f"the plan has head {plan.heads[-1].name}, and the layer has {self.num_heads} heads")
        patterns = [head.pattern for head in plan.heads]
        patterns[0].install(self, heads, patterns)
        self.plan = dataclasses.replace(plan, skipped=())


def _block_rows(blocks: tuple[int, ...] | list[int], D: int) -> Tensor:
    return (torch.tensor(blocks, dtype=torch.int64)[:, None] * D + torch.arange(D)).flatten()
