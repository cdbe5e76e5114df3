"""Calibration of a model: one forward per batch, then every rank works out a share of the heads.

Each rank runs its own sequences through the model while the attention layers hand over their queries and keys.
Per layer the ranks then exchange them, so that a rank holds *some heads of all sequences* instead of all heads of
some sequences. The statistics of a head are computed in one place from the same numbers in the same order whatever
the number of ranks; all-reducing partial sums over ranks could not give the variance without a T x T mean.

Legend: B sequences, T time, U live query heads of a layer, K key heads, D head dim, L layers, H query heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from saf_titan.ops.attention_stats import AttentionStats, attention_stats
from saf_titan.saf.calibration import Calibration, CalibrationRecord
from saf_titan.saf.exchange import HeadExchange

_MAP_SIZE = 64

Batch = TypeVar("Batch")
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total); stage is "forward" or "statistics"."""


class CaptureFn(Protocol):
    """What an attention layer calls once a forward with what its scores are made of."""

    def __call__(
        self,
        q_BTUD: Tensor,
        k_BTKD: Tensor,
        heads: tuple[int, ...],
        scale: float | None,
        key_heads: tuple[int, ...] | None = None,
    ) -> None:
        """Queries of the live heads and the keys, after RoPE.

        heads: number of each live head in the layer, ascending. scale: factor of the scores, None for 1 / sqrt(D).
        key_heads: per live head, which of k's heads it reads; None if they are grouped evenly.
        """


class CapturableAttention(Protocol):
    """An attention layer that can be calibrated. It calls `capture` in each forward while it is not None."""

    num_heads: int
    capture: CaptureFn | None


def calibrate(
    attentions: Sequence[CapturableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    *,
    group: dist.ProcessGroup | None = None,
    positions: Sequence[int] = (),
    seed: int = 0,
    source: str = "",
    progress: Progress | None = None,
) -> Calibration:
    """Attention statistics of every live head of a model.

    Args:
        attentions: the model's attention layers, in order.
        batches: this rank's batches; as many on every rank. With one batch a layer is reduced as soon as it has run
            and its queries and keys are dropped; with several they are kept until the last.
        forward: runs one batch through the model, once (with FSDP all ranks together). The caller puts the model
            in eval mode.
        group: ranks that share the work, the default group if None; none is needed in a single process.
        positions, seed, source: go into the record; `positions` of all sequences, not only this rank's.
        progress: called with (stage, done, total).

    Sequences are ordered by batch on one rank, and by rank, then batch, on several: where rank r holds the r-th
    contiguous share of the sequences, the result is bit-identical for every number of ranks.
    The result is the same on every rank, on the CPU. Raises ValueError, on every rank, for fewer than two sequences,
    for non-finite statistics (naming layer and head) and for layers that disagree about the number of heads.
    """
    if len({attention.num_heads for attention in attentions}) != 1:
        raise ValueError(f"layers must have equally many heads, got {[a.num_heads for a in attentions]}")
    if not batches:
        raise ValueError("calibration needs at least one batch on every rank")
    # a single batch holds all of this rank's sequences: a layer can be reduced at once
    keep = len(batches) > 1
    exchange = HeadExchange(group)
    results: dict[int, _LayerResult] = {}
    captures = [_LayerCapture() for _ in attentions]

    def finish(layer: int) -> None:
        capture = captures[layer]
        results[layer] = _reduce_layer(capture, exchange, first_owner=layer)
        # the queries and keys of a layer are not needed again
        captures[layer] = _LayerCapture(capture.heads, num_calls=capture.num_calls)
        if progress:
            progress("statistics", len(results), len(attentions))

    def hook(layer: int) -> CaptureFn:
        def capture(
            q_BTUD: Tensor,
            k_BTKD: Tensor,
            heads: tuple[int, ...],
            scale: float | None,
            key_heads: tuple[int, ...] | None = None,
        ) -> None:
            if not heads:
                return
            captures[layer].add(q_BTUD, k_BTKD, heads, scale, key_heads, clone=keep)
            if not keep:
                finish(layer)

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
            raise ValueError(f"layer {layer} handed over {capture.num_calls} times in {len(batches)} forwards")
        if capture.heads and layer not in results:
            finish(layer)
    if not results:
        raise ValueError("no attention layer handed over queries: every head is static, or `capture` is never called")
    return _assemble(results, len(attentions), attentions[0].num_heads, exchange, tuple(positions), seed, source)


@dataclass
class _LayerCapture:
    """Queries and keys of one layer's live heads, a pair a batch."""

    heads: tuple[int, ...] = ()
    scale: float | None = None
    key_heads: tuple[int, ...] = ()
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    num_calls: int = 0

    def add(
        self,
        q_BTUD: Tensor,
        k_BTKD: Tensor,
        heads: tuple[int, ...],
        scale: float | None,
        key_heads: tuple[int, ...] | None,
        *,
        clone: bool,
    ) -> None:
        U, K = q_BTUD.shape[2], k_BTKD.shape[2]
        if key_heads is None:
            if K == 0 or U % K:
                raise ValueError(f"{U} live heads are not evenly grouped over {K} key heads: pass key_heads")
            key_heads = tuple(u // (U // K) for u in range(U))
        assert len(heads) == len(key_heads) == U
        self.heads, self.scale, self.key_heads = tuple(heads), scale, key_heads
        self.queries.append(q_BTUD.clone() if clone else q_BTUD)
        self.keys.append(k_BTKD.clone() if clone else k_BTKD)
        self.num_calls += 1


@dataclass(frozen=True)
class _LayerResult:
    heads: tuple[int, ...]
    owned: tuple[int, ...]
    """Heads whose statistics this rank computed."""
    stats: AttentionStats | None
    num_sequences: int
    seq_len: int
    device: torch.device


def _reduce_layer(capture: _LayerCapture, exchange: HeadExchange, *, first_owner: int) -> _LayerResult:
    """Statistics of this rank's share of a layer's live heads over the sequences of all ranks."""
    q_BTUD = exchange.heads_of_all_sequences(torch.cat(capture.queries), first_owner)
    # one key head a query head, so that queries and keys travel alike
    k_BTUD = exchange.heads_of_all_sequences(torch.cat(capture.keys)[:, :, list(capture.key_heads)], first_owner)
    B, T, U, _ = q_BTUD.shape
    if B < 2:
        raise ValueError(f"the variance over sequences needs at least 2 calibration sequences, got {B}")
    owned = exchange.owned(len(capture.heads), exchange.rank, first_owner)
    stats = attention_stats(q_BTUD, k_BTUD, scale=capture.scale, map_size=_MAP_SIZE) if U else None
    return _LayerResult(capture.heads, tuple(capture.heads[u] for u in owned), stats, B, T, q_BTUD.device)


def _assemble(
    results: dict[int, _LayerResult],
    num_layers: int,
    num_heads: int,
    exchange: HeadExchange,
    positions: tuple[int, ...],
    seed: int,
    source: str,
) -> Calibration:
    """Bring the shares of all ranks together: each head was computed on one rank, all others add zero."""
    L, H = num_layers, num_heads
    one = next(iter(results.values()))
    if positions and len(positions) != one.num_sequences:
        raise ValueError(f"positions has {len(positions)} entries for {one.num_sequences} calibration sequences")
    T, P = one.seq_len, min(one.seq_len, _MAP_SIZE)
    live_LH = torch.zeros(L, H, dtype=torch.bool)
    for layer, result in results.items():
        live_LH[layer, list(result.heads)] = True

    def table(name: str, *shape: int) -> Tensor:
        """A field of AttentionStats for the whole model."""
        values = torch.zeros(L, H, *shape, dtype=torch.float64, device=one.device)
        for layer, result in results.items():
            if result.stats is not None:
                values[layer, list(result.owned)] = getattr(result.stats, name)
        exchange.sum_in_place(values)
        values = values.cpu()
        values[~live_LH] = math.nan
        return values

    calibration = Calibration(
        variance_LH=table("variance_H"),
        kl_LH=table("kl_H"),
        neg_entropy_LH=table("neg_entropy_H"),
        column_mass_LHT=table("column_mass_HT", T),
        diagonal_mass_LHT=table("diagonal_mass_HT", T),
        entropy_LH=table("entropy_H"),
        mean_map_LHPP=table("mean_map_HPP", P, P),
        live_LH=live_LH,
        record=CalibrationRecord(one.num_sequences, T, positions, seed, source),
    )
    _check_finite(calibration.kl_LH, live_LH)
    return calibration


def _check_finite(score_LH: Tensor, live_LH: Tensor) -> None:
    broken = [f"L{layer}H{head}" for layer, head in (live_LH & ~score_LH.isfinite()).nonzero().tolist()]
    if broken:
        more = f" and {len(broken) - 8} more" if len(broken) > 8 else ""
        raise ValueError(
            f"attention of {', '.join(broken[:8])}{more} (layer, head) is not finite on the calibration data: "
            "the weights or activations hold NaN or infinity"
        )
