"""Collect the queries and keys of attention layers while batches run through a model.

Legend: B sequences, T time, U live query heads of a layer, K kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from saf_titan.saf.calibrate.exchange import HeadExchange

Batch = TypeVar("Batch")
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total); stage is "forward", "statistics" or "patterns"."""


class CaptureFn(Protocol):
    """A function that an attention layer calls once in each forward, with its queries and keys."""

    def __call__(
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
        """Receive the queries of the live heads and the keys, both after RoPE.

        heads: index of each live head in the layer, ascending. scale: factor of the scores, None for 1 / sqrt(D).
        kv_heads: for each live head, the index in k of its kv head; None if the live heads are grouped evenly.
        window: number of latest keys that a query sees, its own included; None for all.
        softcap: scores s are capped to softcap * tanh(s / softcap); None for plain scores.
        """


class CapturableAttention(Protocol):
    """An attention layer that can be calibrated. It calls `capture` in each forward while it is not None."""

    num_heads: int
    capture: CaptureFn | None


class LayerCapture:
    """The queries and keys of one layer's live heads, one pair of tensors for each batch."""

    def __init__(self, wanted: Collection[int] | None, *, clone: bool) -> None:
        """wanted: the heads to keep, all live ones if None. clone: copy tensors, which then outlive the forward."""
        self._wanted, self._clone = wanted, clone
        self._queries: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._kv_heads: tuple[int, ...] = ()
        self.heads: tuple[int, ...] = ()
        """Heads whose queries are here, ascending."""
        self.scale: float | None = None
        self.window: int | None = None
        self.softcap: float | None = None
        self.num_calls = 0

    def add(
        self,
        q_BTUD: Tensor,
        k_BTKD: Tensor,
        heads: tuple[int, ...],
        scale: float | None,
        kv_heads: tuple[int, ...] | None,
        window: int | None,
        softcap: float | None,
    ) -> None:
        """Keep one forward's queries and keys; the arguments are those of `CaptureFn`."""
        U, K = q_BTUD.shape[2], k_BTKD.shape[2]
        if kv_heads is None:
            if K == 0 or U % K:
                raise ValueError(f"{U} live heads are not evenly grouped over {K} kv heads: pass kv_heads")
            kv_heads = tuple(u // (U // K) for u in range(U))
        assert len(heads) == len(kv_heads) == U
        self.num_calls += 1
        if self._wanted is not None:
            kept = [u for u, head in enumerate(heads) if head in self._wanted]
            q_BTUD, heads = q_BTUD[:, :, kept], tuple(heads[u] for u in kept)
            kv_heads = tuple(kv_heads[u] for u in kept)
        if not heads:
            return
        self.heads, self.scale, self._kv_heads = tuple(heads), scale, kv_heads
        self.window, self.softcap = window, softcap
        self._queries.append(q_BTUD.clone() if self._clone else q_BTUD)
        self._keys.append(k_BTKD.clone() if self._clone else k_BTKD)

    def of_all_sequences(self, exchange: HeadExchange, first_owner: int) -> tuple[Tensor, Tensor]:
        """Return queries and keys of this rank's share of the heads, for the sequences of all ranks.

        Keys are repeated so that each query head has its own. The capture is empty afterwards.
        """
        q_BTUD, k_BTKD = torch.cat(self._queries), torch.cat(self._keys)
        self._queries, self._keys = [], []
        q_BTUD = exchange.heads_of_all_sequences(q_BTUD, first_owner)
        # repeat keys for their query heads first, so that queries and keys are exchanged in the same way
        return q_BTUD, exchange.heads_of_all_sequences(k_BTKD[:, :, list(self._kv_heads)], first_owner)


def capture_layers(
    attentions: Sequence[CapturableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    reduce: Callable[[int, LayerCapture], None],
    *,
    wanted: Mapping[int, Collection[int]] | None = None,
    progress: Progress | None = None,
) -> None:
    """Run each batch once and call `reduce(layer, capture)` for every layer with live heads, in order.

    wanted: the heads to capture of each layer; all live heads of all layers if None.

    With one batch, `reduce` is called as soon as a layer has run, and its queries and keys are dropped. With several
    batches they are kept until the last. Raises ValueError for no batches, for layers with different numbers of heads,
    and for a layer that did not run in every forward.
    """
    if len({attention.num_heads for attention in attentions}) != 1:
        raise ValueError(f"layers must have equally many heads, got {[a.num_heads for a in attentions]}")
    if not batches:
        raise ValueError("calibration needs at least one batch on every rank")
    # a single batch holds all of this rank's sequences: a layer can be reduced at once
    at_once = len(batches) == 1
    captures = [
        LayerCapture(None if wanted is None else wanted.get(layer, ()), clone=not at_once)
        for layer in range(len(attentions))
    ]

    def hook(layer: int) -> CaptureFn:
        def capture(
            q_BTUD: Tensor,
            k_BTKD: Tensor,
            heads: tuple[int, ...],
            scale: float | None,
            kv_heads: tuple[int, ...] | None = None,
            *,
            window: int | None = None,
            softcap: float | None = None,
        ) -> None:
            if heads:
                captures[layer].add(q_BTUD, k_BTKD, heads, scale, kv_heads, window, softcap)
                if at_once and captures[layer].heads:
                    reduce(layer, captures[layer])

        return capture

    try:
        for layer, attention in enumerate(attentions):
            attention.capture = hook(layer)
        with torch.no_grad():
            for done, batch in enumerate(batches, start=1):
                forward(batch)
                if progress:
                    progress("forward", done, len(batches))
    finally:
        for attention in attentions:
            attention.capture = None
    for layer, capture in enumerate(captures):
        if capture.num_calls not in (0, len(batches)):
            raise ValueError(f"layer {layer} called `capture` {capture.num_calls} times in {len(batches)} forwards")
        if capture.heads and not at_once:
            reduce(layer, capture)
