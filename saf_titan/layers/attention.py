"""Causal self-attention in which some heads are static: fixed patterns in place of queries and keys.

Legend: B batch, T time, C model width, H query heads, K kv heads, U live heads, S static heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common.attention import AttentionMasksType, GQAttention
from torchtitan.protocols.module import Module

from saf_titan.layers.qkv import SplitQKV
from saf_titan.ops import StaticPattern, mixed_attention, prepare_pattern
from saf_titan.ops.dense_mix import dense_attention
from saf_titan.ops.mixed_attention.heads import Heads
from saf_titan.ops.mixed_attention.op import fused_obstacle, prefers_split
from saf_titan.saf.calibrate.capture import CaptureFn


class MixedAttention(Module):
    """Inner attention: scores and softmax for live heads, ``ops.static_mix`` or ``ops.dense_mix`` for static ones.

    Patterns and head numbers are buffers, so that a freeze changes only the shapes that a compiled graph is guarded on.
    The buffers are not persistent, because the plan in the checkpoint records the static heads and their patterns.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        num_heads: int
        backend: str = "auto"

    live_heads_U: Tensor
    static_heads_S: Tensor
    pattern_alpha_HT: Tensor
    pattern_rho_HT: Tensor
    dense_STT: Tensor | None
    """Patterns of static heads that are matrices, (S, T_fit, T_fit)."""

    def __init__(self, config: Config):
        super().__init__()
        self.num_heads = config.num_heads
        self.backend = config.backend
        self.static_heads: tuple[int, ...] = ()
        self.register_buffer("live_heads_U", torch.empty(config.num_heads, dtype=torch.int64), persistent=False)
        self.register_buffer("static_heads_S", torch.empty(0, dtype=torch.int64), persistent=False)
        self.register_buffer("dense_STT", None, persistent=False)

    def set_static(self, static_heads: tuple[int, ...], pattern: StaticPattern) -> None:
        """Mix the values of ``static_heads`` (ascending) by ``pattern`` from now on."""
        self._set_heads(static_heads, pattern.alpha_HT.device)
        for name, tensor in pattern._asdict().items():
            self.register_buffer(f"pattern_{name}", tensor, persistent=False)

    def set_dense(self, static_heads: tuple[int, ...], p_STT: Tensor) -> None:
        """Mix the values of ``static_heads`` (ascending) by the matrices ``p_STT`` [S, T_fit, T_fit] from now on."""
        self._set_heads(static_heads, p_STT.device)
        self.dense_STT = p_STT

    def _set_heads(self, static_heads: tuple[int, ...], device: torch.device) -> None:
        self._drop_patterns()
        self.static_heads = static_heads
        live_heads = [head for head in range(self.num_heads) if head not in static_heads]
        self.live_heads_U = torch.tensor(live_heads, dtype=torch.int64, device=device)
        self.static_heads_S = torch.tensor(static_heads, dtype=torch.int64, device=device)

    def _drop_patterns(self) -> None:
        self.dense_STT = None
        for name in StaticPattern._fields:
            self._buffers.pop(f"pattern_{name}", None)

    def set_live(self, num_heads: int) -> None:
        """Compute scores for ``num_heads`` heads from now on and forget all patterns."""
        self.static_heads = ()
        self.num_heads = num_heads
        self.live_heads_U = torch.arange(num_heads, device=self.live_heads_U.device)
        self.static_heads_S = self.live_heads_U[:0]
        self._drop_patterns()

    def pattern(self) -> StaticPattern | None:
        """Return the prepared pattern of the static heads; None without static heads or if their patterns are dense."""
        if not self.static_heads or self.dense_STT is not None:
            return None
        return StaticPattern(*(getattr(self, f"pattern_{name}") for name in StaticPattern._fields))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MixedAttention:
        # patterns move to other devices with the module but keep their dtype: half() would overflow their factors
        before = {f"pattern_{name}": self._buffers.get(f"pattern_{name}") for name in StaticPattern._fields}
        super()._apply(fn, recurse)
        for name, tensor in before.items():
            moved = self._buffers.get(name)
            if tensor is not None and moved is not None and moved.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(moved.device)
        return self

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        # torchtitan builds the model on the meta device and then allocates empty buffers, which are filled here
        self.live_heads_U = torch.arange(self.num_heads, device=buffer_device or self.live_heads_U.device)

    def describe_backend(self, head_dim: int, device: torch.device) -> str:
        """Return which operator this layer takes for heads of width `head_dim` on `device`, and why, as text."""
        if not self.static_heads:
            return "torch's attention (no head is static)"
        if self.dense_STT is not None:
            return "torch's attention for live heads, matrix products for the static ones (patterns are matrices)"
        if not self.live_heads_U.numel():
            return "static mixing (every head is static)"
        if self.backend != "auto":
            return f'{self.backend} (model.attention_backend = "{self.backend}")'
        heads = Heads(self.live_heads_U, self.static_heads_S)
        # the choice depends on the width and the device of the values alone, so one empty value is enough
        v_BTKD = torch.empty((1, 1, 1, head_dim), device=device)
        obstacle = fused_obstacle(v_BTKD, heads, self.pattern())
        if obstacle is not None:
            return f"split (auto: fused {obstacle})"
        if prefers_split(v_BTKD, None):
            return "split (auto: it keeps torch's attention kernel for live heads; not timed against fused on a GPU)"
        return "fused (auto: the fastest measured on a CPU)"

    def forward(
        self, q_BTUD: Tensor | None, k_BTKD: Tensor | None, v_BTKD: Tensor, *, scale: float | None = None
    ) -> Tensor:
        """Return the outputs of all heads in ascending order.

        q [B, T, U, D], k and v [B, T, K, D] -> y [B, T, H, D]; q and k are None if no head is live.
        """
        if self.dense_STT is not None:
            heads = {"live_heads": self.live_heads_U, "static_heads": self.static_heads_S}
            return dense_attention(q_BTUD, k_BTKD, v_BTKD, **heads, p_STT=self.dense_STT, scale=scale)
        return mixed_attention(
            q_BTUD,
            k_BTKD,
            v_BTKD,
            live_heads=self.live_heads_U,
            static_heads=self.static_heads_S,
            pattern=self.pattern(),
            scale=scale,
            # a backend can be chosen only for layers with live and static heads; other layers have one implementation
            backend=self.backend if self.static_heads and self.live_heads_U.numel() else "auto",
        )


class SAFAttention(GQAttention):
    """Attention, with or without grouped queries, whose heads can be made static or pruned between optimizer steps.

    ``capture``, when set, is called with the live queries and keys of every forward; calibration uses it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GQAttention.Config):
        pass

    qkv_linear: SplitQKV
    inner_attention: MixedAttention
    capture: CaptureFn | None
    static_heads: tuple[int, ...]
    """Heads without scores: their values are mixed by a fixed pattern, or the heads are pruned."""
    is_pruned: bool
    """Whether the static heads are removed altogether, with their values and their output."""
    key_index_U: Tensor | None
    """The kv head of each live head, int64 [U]; set when heads are pruned and groups may differ in size."""
    output_columns: Tensor | None
    """The columns of ``wo`` that read live heads, int64 [U * D]; set when heads are pruned."""
    heads_version: int
    """Number of changes of the static heads so far; see `saf.install.guard`."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.capture = None
        self.static_heads = ()
        self.is_pruned = False
        self.register_buffer("key_index_U", None, persistent=False)
        self.register_buffer("output_columns", None, persistent=False)
        self.heads_version = 0

    @property
    def num_heads(self) -> int:
        return self.n_heads

    @property
    def live_heads(self) -> tuple[int, ...]:
        return tuple(head for head in range(self.n_heads) if head not in self.static_heads)

    @property
    def output_heads(self) -> tuple[int, ...]:
        """Return the heads that have an output, ascending: all heads except pruned ones."""
        return self.live_heads if self.is_pruned else tuple(range(self.n_heads))

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Return, for each live head, the index of its kv head among the kv heads whose keys are computed."""
        group = self.n_heads // self.n_kv_heads
        unread = self.qkv_linear.unused_heads(self.static_heads, frees_values=self.is_pruned).k
        return tuple(head // group - sum(kv_head < head // group for kv_head in unread) for head in self.live_heads)

    def describe_backend(self) -> str:
        """Return which operator the layer now takes for its heads, and why, as text."""
        text = self.inner_attention.describe_backend(self.qkv_linear.head_dim, self.wo.weight.device)
        if not self.is_pruned:
            return text
        return f"torch's attention for {len(self.live_heads)} live heads (the others are pruned)"

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None:
        """Make exactly ``heads`` (ascending, unique) static.

        Args:
            heads: head numbers.
            alpha_ST, rho_ST: the logits over keys and over distances, fp32 [len(heads), T_fit]; see
                :class:`saf_titan.ops.StaticPattern`.
        """
        self._set_heads(heads, is_pruned=False)
        device = self.wo.weight.device
        self.inner_attention.set_static(heads, prepare_pattern(alpha_ST.to(device), rho_ST.to(device)))
        self.qkv_linear.skip(heads, values=False)

    def set_dense(self, heads: tuple[int, ...], p_STT: Tensor) -> None:
        """Make exactly ``heads`` (ascending, unique) static, with fp32 matrices [len(heads), T_fit, T_fit]."""
        self._set_heads(heads, is_pruned=False)
        self.inner_attention.set_dense(heads, p_STT.to(self.wo.weight.device))
        self.qkv_linear.skip(heads, values=False)

    @property
    def fitted_length(self) -> int | None:
        """Return the longest sequence, in tokens, that the patterns are defined for; None without a limit."""
        inner = self.inner_attention
        if inner.dense_STT is not None:
            return inner.dense_STT.shape[1]
        pattern = inner.pattern()
        return pattern.T_fit if pattern is not None else None

    def pattern_logits(self) -> tuple[Tensor, Tensor]:
        """Return alpha and rho [S, T_fit] of the patterns: the tensors that mixing uses, so gradients reach them."""
        return self.inner_attention.pattern_alpha_HT, self.inner_attention.pattern_rho_HT

    def set_pruned(self, heads: tuple[int, ...]) -> None:
        """Remove exactly ``heads`` (ascending, unique), the control that freezing is compared with."""
        self._set_heads(heads, is_pruned=True)
        kept, device = self.live_heads, self.wo.weight.device
        self.inner_attention.set_live(len(kept))
        self.qkv_linear.skip(heads, values=True)
        if self.n_kv_heads < self.n_heads:
            self.key_index_U = torch.tensor(self.kv_heads, dtype=torch.int64, device=device)
        # a head has the same numbers among the columns of wo as among the rows of wq
        self.output_columns = self.qkv_linear.head_rows(kept).to(device)

    def set_live(self) -> None:
        """Make every head live again."""
        self._set_heads((), is_pruned=False)
        self.inner_attention.set_live(self.n_heads)
        self.qkv_linear.skip((), values=False)

    def _set_heads(self, heads: tuple[int, ...], *, is_pruned: bool) -> None:
        assert list(heads) == sorted(set(heads)), heads
        self.static_heads = tuple(heads)
        self.is_pruned = is_pruned
        self.key_index_U = self.output_columns = None
        self.heads_version += 1

    def forward(
        self, x_BLD: Tensor, attention_masks: AttentionMasksType | None, positions: Tensor | None = None
    ) -> Tensor:
        """x [B, T, C] -> [B, T, C]; the argument names are torchtitan's (L is time, D the model width)."""
        if attention_masks is not None:
            raise ValueError("SAFAttention is causal over the whole sequence; attention masks are not supported")
        q_BTUD, k_BTKD, v_BTKD = self.qkv_linear(x_BLD)
        if v_BTKD is None:
            # every head is pruned
            return self.without_heads(x_BLD)
        if q_BTUD is not None and k_BTKD is not None:
            q_BTUD, k_BTKD = self.positioned(q_BTUD, k_BTKD, positions)
            if self.capture is not None:
                self.capture(q_BTUD, k_BTKD, self.live_heads, self.scaling, self.kv_heads)
        return self.output(self.mix(q_BTUD, k_BTKD, v_BTKD))

    def positioned(self, q_BTUD: Tensor, k_BTKD: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return queries and keys normalised, if the model has that, and rotated to their positions.

        positions: int64 [B, T]; None for 0 .. T - 1.
        """
        if self.q_norm is not None and self.k_norm is not None:
            q_BTUD, k_BTKD = self.q_norm(q_BTUD), self.k_norm(k_BTKD)
        return self.rope(q_BTUD, k_BTKD, positions)

    def mix(self, q_BTUD: Tensor | None, k_BTKD: Tensor | None, v_BTKD: Tensor) -> Tensor:
        """Attend over whole sequences with positioned queries and keys; return [B, T, len(output_heads), D]."""
        if self.key_index_U is not None and k_BTKD is not None:
            k_BTKD, v_BTKD = (x_BTKD.index_select(2, self.key_index_U) for x_BTKD in (k_BTKD, v_BTKD))
        return self.inner_attention(q_BTUD, k_BTKD, v_BTKD, scale=self.scaling)

    def output(self, y_BTHD: Tensor) -> Tensor:
        """Project [B, T, len(output_heads), D] back to the residual stream, [B, T, C]."""
        if self.output_columns is not None:
            return F.linear(y_BTHD.flatten(2), self.wo.weight.index_select(1, self.output_columns), self.wo.bias)
        return self.wo(y_BTHD.flatten(2))

    def without_heads(self, x_BTC: Tensor) -> Tensor:
        """Return the output of a layer whose heads are all pruned: zero, or the bias of the output projection."""
        return torch.zeros_like(x_BTC) if self.wo.bias is None else self.wo.bias.to(x_BTC.dtype).expand_as(x_BTC)
