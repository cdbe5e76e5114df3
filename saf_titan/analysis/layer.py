"""One attention layer during one forward: the attention rows of its heads, their values and output weights.

Both kinds of model are read in the same way: decoders with `SAFAttention`, and models that `saf_titan.hf.load` gave.
Rows are computed from queries and keys, or from the pattern of a static head, for as many queries at a time as are
asked for.

Legend: B sequences, T time, R queries of a row block, J keys up to the last of these queries, H heads with an output
(all but pruned ones), U live heads, S static heads, K kv heads, D head width, C model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.attention_stats import cap_scores, hidden_keys
from saf_titan.ops.pattern import attention_rows


@dataclass(frozen=True)
class _Scores:
    """The inputs of the attention scores of the live heads of one layer."""

    q_BTUD: Tensor
    k_BTUD: Tensor
    scale: float
    softcap: float | None

    def rows(self, start: int, stop: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Attention of the queries start <= i < stop over the keys j < stop, (B, U, R, stop)."""
        q_BURD = self.q_BTUD[:, start:stop].transpose(1, 2).to(dtype) * self.scale
        scores_BURJ = cap_scores(q_BURD @ self.k_BTUD[:, :stop].permute(0, 2, 3, 1).to(dtype), self.softcap)
        return scores_BURJ.masked_fill_(hidden_keys(start, stop, window, q_BURD.device), -math.inf).softmax(-1)


class LayerAttention:
    """One layer of one forward. It stores only what the layer computed anyway: queries, keys and values."""

    def __init__(self, layer: int, attention: Any, v_BTKD: Tensor, scores: _Scores | None, window: int | None) -> None:
        self.layer = layer
        """The number of the layer, from 0."""
        self.v_BTKD = v_BTKD
        """Values; head h of the H heads reads head h // (H / K)."""
        self.heads: tuple[int, ...] = attention.output_heads
        """The numbers of the H heads, ascending."""
        self.window = window
        """How many of the latest keys a query sees, its own included; None for all."""
        self._attention, self._scores = attention, scores

    @property
    def seq_len(self) -> int:
        return self.v_BTKD.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type to compute in: float64 for a float64 model, else float32."""
        return torch.promote_types(self.v_BTKD.dtype, torch.float32)

    @property
    def wo_HDC(self) -> Tensor:
        """The output weight of each head: its output in the model's width is y @ wo."""
        weight_CX = self._attention.wo.weight.detach()
        per_head = weight_CX.T.unflatten(0, (self._attention.num_heads, -1))
        return per_head if len(self.heads) == len(per_head) else per_head[list(self.heads)]

    def rows(self, start: int = 0, stop: int | None = None, *, dtype: torch.dtype | None = None) -> Tensor:
        """Attention of the queries start <= i < stop over the keys j < stop, (B, H, R, stop).

        Rows of live and static heads sum to 1; rows of a pruned head that keeps its place are zero.
        """
        stop, dtype = self.seq_len if stop is None else stop, dtype or self.dtype
        attention, B = self._attention, len(self.v_BTKD)
        live = None if self._scores is None else self._scores.rows(start, stop, self.window, dtype)
        if live is not None and live.shape[1] == len(self.heads):
            return live
        p_BHRJ = torch.zeros(B, len(self.heads), stop - start, stop, dtype=dtype, device=self.v_BTKD.device)
        if live is not None:
            p_BHRJ[:, [self.heads.index(head) for head in attention.live_heads]] = live
        static = [self.heads.index(head) for head in attention.static_heads if head in self.heads]
        if static:
            p_BHRJ[:, static] = self._static_rows(start, stop).to(dtype)
        return p_BHRJ

    def _static_rows(self, start: int, stop: int) -> Tensor:
        """The patterns of the static heads, (S, R, stop)."""
        attention = self._attention
        mixer = getattr(attention, "mixer", None)
        if mixer is not None:
            rows_SRJ: Tensor = mixer.rows(start, stop, self.window, self.v_BTKD.device)
            return rows_SRJ
        if attention.inner_attention.dense_STT is not None:
            return attention.inner_attention.dense_STT[:, start:stop, :stop].double()
        alpha_ST, rho_ST = attention.pattern_logits()
        return attention_rows(alpha_ST.double(), rho_ST.double(), start, stop)


Use = Callable[[LayerAttention], Tensor | None]
"""Called for each layer of each forward. It may return other outputs of the heads, (B, T, H, D), which the layer then
uses instead of its own."""


@contextmanager
def watching(attentions: Sequence[Any], use: Use) -> Iterator[None]:
    """Call `use` for every layer of each forward inside the context.

    Args:
        attentions: the model's attention layers in order: `SAFAttention` modules, or `model.attentions` of a model that
            `saf_titan.hf.load` gave.

    `use` is not called for a layer whose heads are all pruned, because such a layer attends to nothing. Sequences begin
    at position 0 and may be padded at the right only. Raises ValueError, as calibration does, for a model or input that
    cannot be followed.
    """
    with ExitStack() as stack:
        for layer, attention in enumerate(attentions):
            watched = _Watched(layer, attention, use)
            attention.capture = watched.keep
            stack.callback(setattr, attention, "capture", None)
            stack.callback(attention.inner_attention.register_forward_hook(watched.after).remove)
        yield


class _Watched:
    """Collects the queries and keys of one layer, and calls `use` when the outputs of its heads are computed."""

    def __init__(self, layer: int, attention: Any, use: Use) -> None:
        self._layer, self._attention, self._use = layer, attention, use
        self._scores: _Scores | None = None
        self._window: int | None = None

    def keep(
        self,
        q_BTUD: Tensor,
        k_BTKD: Tensor,
        heads: tuple[int, ...],
        scale: float | None,
        kv_heads: tuple[int, ...] | None = None,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        """Store the inputs of the scores; the arguments are those of `CaptureFn`."""
        self._window = window
        if heads:
            if kv_heads is not None and kv_heads != tuple(range(k_BTKD.shape[2])):
                k_BTKD = k_BTKD[:, :, list(kv_heads)]
            self._scores = _Scores(q_BTUD, k_BTKD, q_BTUD.shape[-1] ** -0.5 if scale is None else scale, softcap)

    def after(self, module: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Call `use` with the layer; this method is a forward hook of the inner attention."""
        layer = LayerAttention(self._layer, self._attention, args[2], self._scores, self._window)
        self._scores = None
        y_BTHD = self._use(layer)
        return None if y_BTHD is None else y_BTHD.to(output.dtype)
