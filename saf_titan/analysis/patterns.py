"""The attention patterns of every head in a forward, of our decoders and of `saf_titan.hf` models alike.

Live heads hand over queries and keys; the pattern of a static head is its attention. A caller sees them layer by layer
and may change them, in which case the layer goes on with the changed pattern.

Legend: B sequences, T time, H heads with an output (all but pruned ones), U live heads, S static heads, K kv heads,
D head width, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.attention_stats import attention_probs
from saf_titan.ops.pattern import attention_rows

Use = Callable[[int, Tensor], Tensor | None]
"""Called with (layer, patterns (B, H, T, T)) in each forward; returns changed patterns, or None to change nothing."""


@contextmanager
def using_patterns(attentions: Sequence[Any], use: Use) -> Iterator[None]:
    """Call `use` for every layer of each forward inside the context.

    Args:
        attentions: the model's attention layers in order: `SAFAttention` modules, or `model.attentions` of a model that
            `saf_titan.hf.load` gave.

    Patterns are float64 and need O(B H T^2) memory. Sequences begin at position 0 and may be padded at the right only.
    Raises ValueError, as calibration does, for a model or input that it cannot follow.
    """
    with ExitStack() as stack:
        for layer, attention in enumerate(attentions):
            watched = _Layer(layer, attention, use)
            attention.capture = watched.keep
            stack.callback(setattr, attention, "capture", None)
            stack.callback(attention.inner_attention.register_forward_hook(watched.after).remove)
        yield


class _Layer:
    """One layer: what its live heads handed over, until its output is there."""

    def __init__(self, layer: int, attention: Any, use: Use) -> None:
        self._layer, self._attention, self._use = layer, attention, use
        self._live_BUTT: Tensor | None = None
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
        """Compute the patterns of live heads; the arguments are those of `CaptureFn`."""
        self._window = window
        if heads:
            k_BTUD = k_BTKD if kv_heads is None else k_BTKD[:, :, list(kv_heads)]
            self._live_BUTT = attention_probs(q_BTUD, k_BTUD, scale=scale, window=window, softcap=softcap)

    def after(self, module: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Show the patterns, and return the output of changed ones; a forward hook of the inner attention."""
        v_BTKD = args[2]
        changed = self._use(self._layer, self._patterns(v_BTKD))
        self._live_BUTT = None
        if changed is None:
            return None
        v_BTHD = v_BTKD.repeat_interleave(changed.shape[1] // v_BTKD.shape[2], dim=2)
        dtype = torch.promote_types(v_BTKD.dtype, torch.float32)
        return torch.einsum("bhij,bjhd->bihd", changed.to(dtype), v_BTHD.to(dtype)).to(output.dtype)

    def _patterns(self, v_BTKD: Tensor) -> Tensor:
        """Patterns of all heads with an output, in their natural order."""
        attention, (B, T) = self._attention, v_BTKD.shape[:2]
        heads = attention.output_heads
        p_BHTT = torch.zeros(B, len(heads), T, T, dtype=torch.float64, device=v_BTKD.device)
        if self._live_BUTT is not None:
            p_BHTT[:, [heads.index(head) for head in attention.live_heads]] = self._live_BUTT
        static = [head for head in attention.static_heads if head in heads]
        if static:
            p_BHTT[:, [heads.index(head) for head in static]] = self._static_rows(T, v_BTKD.device)
        return p_BHTT

    def _static_rows(self, T: int, device: torch.device) -> Tensor:
        attention = self._attention
        mixer = getattr(attention, "mixer", None)
        if mixer is not None:
            window = self._window or getattr(attention.module, "sliding_window", None)
            rows_STT: Tensor = mixer.rows(0, T, window, device)
            return rows_STT
        if attention.inner_attention.dense_STT is not None:
            return attention.inner_attention.dense_STT[:, :T, :T].double()
        alpha_ST, rho_ST = attention.pattern_logits()
        return attention_rows(alpha_ST.double(), rho_ST.double(), 0, T)


def attention_from(
    attentions: Sequence[Any], forward: Callable[[Tensor], object], tokens_BT: Tensor, rows_B: Tensor
) -> Tensor:
    """Return where each head looks from one position of each sequence, float64 (B, L, H, T).

    Args:
        forward: runs token ids (B, T) through the model.
        rows_B: the position of the query in each sequence, usually that of the prediction.

    Rows sum to 1. Raises ValueError for layers that do not have equally many heads.
    """
    rows: dict[int, Tensor] = {}
    index_B = torch.arange(len(tokens_BT), device=rows_B.device)

    def keep(layer: int, p_BHTT: Tensor) -> None:
        rows[layer] = p_BHTT[index_B, :, rows_B]

    with torch.no_grad(), using_patterns(attentions, keep):
        forward(tokens_BT)
    if len({row.shape[1] for row in rows.values()}) != 1:
        raise ValueError(
            f"layers have {[row.shape[1] for row in rows.values()]} heads with an output, expected as many"
        )
    return torch.stack([rows[layer] for layer in range(len(attentions))], dim=1)
