"""Measure the attention of every head: one forward per batch, then every rank computes a share of the heads.

Each rank runs its own sequences through the model while the attention layers hand over their queries and keys.
After each layer the ranks exchange them, so that a rank holds *some heads of all sequences* instead of all heads of
some sequences. The statistics of a head are then computed on one rank, from the same numbers in the same order for
every number of ranks. An all-reduce of partial sums would not work, because the variance would need a T x T mean.

Legend: B sequences, T time, U live query heads of a layer, K kv heads, D head dim, L layers, H query heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from saf_titan.ops.attention_stats import AttentionStats, attention_stats
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.calibrate.capture import Batch, CapturableAttention, LayerCapture, Progress, capture_layers
from saf_titan.saf.calibrate.exchange import HeadExchange

_MAP_SIZE = 64


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
    """Measure the attention statistics of every live head of a model.

    Args:
        attentions: the model's attention layers, in order.
        batches: this rank's batches; every rank must have the same number. With one batch, a layer's statistics are
            computed as soon as the layer has run, and its queries and keys are dropped. With several, queries and keys
            of all layers are kept until the last batch.
        forward: runs one batch through the model, once (with FSDP all ranks together). The caller puts the model
            in eval mode.
        group: process group of the ranks that share the work; None is the default group, or a single process.
        positions, seed, source: recorded in `CalibrationRecord`, with the positions of the sequences of all ranks.
        progress: called with (stage, done, total).

    Sequences are ordered by rank, then by batch. If rank r holds the r-th contiguous share of the sequences, the result
    is bit-identical for every number of ranks. Every rank gets the same result, on the CPU. Raises ValueError, on every
    rank, for fewer than two sequences, for non-finite statistics (naming layer and head) and for layers with different
    numbers of heads.
    """
    exchange = HeadExchange(group)
    results: dict[int, _LayerResult] = {}

    def reduce(layer: int, capture: LayerCapture) -> None:
        results[layer] = _reduce_layer(capture, exchange, first_owner=layer)
        if progress:
            progress("statistics", len(results), len(attentions))

    capture_layers(attentions, batches, forward, reduce, progress=progress)
    if not results:
        raise ValueError("no attention layer called `capture` with queries: all heads are static, or no layer calls it")
    return _assemble(results, len(attentions), attentions[0].num_heads, exchange, tuple(positions), seed, source)


@dataclass(frozen=True)
class _LayerResult:
    heads: tuple[int, ...]
    owned: tuple[int, ...]
    """Heads whose statistics this rank computed."""
    stats: AttentionStats | None
    num_sequences: int
    seq_len: int
    device: torch.device


def _reduce_layer(capture: LayerCapture, exchange: HeadExchange, *, first_owner: int) -> _LayerResult:
    """Compute the statistics of this rank's share of a layer's live heads, over the sequences of all ranks."""
    q_BTUD, k_BTUD = capture.of_all_sequences(exchange, first_owner)
    B, T, U, _ = q_BTUD.shape
    if B < 2:
        raise ValueError(f"the variance over sequences needs at least 2 calibration sequences, got {B}")
    owned = exchange.owned(len(capture.heads), exchange.rank, first_owner)
    stats = None
    if U:
        stats = attention_stats(
            q_BTUD,
            k_BTUD,
            scale=capture.scale,
            window=capture.window,
            softcap=capture.softcap,
            map_size=_MAP_SIZE,
        )
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
    """Add up the tables of all ranks. Each head was computed on one rank; the other ranks contribute zero."""
    L, H = num_layers, num_heads
    one = next(iter(results.values()))
    if positions and len(positions) != one.num_sequences:
        raise ValueError(f"positions has {len(positions)} entries for {one.num_sequences} calibration sequences")
    T, P = one.seq_len, min(one.seq_len, _MAP_SIZE)
    live_LH = torch.zeros(L, H, dtype=torch.bool)
    for layer, result in results.items():
        live_LH[layer, list(result.heads)] = True

    def table(name: str, *shape: int) -> Tensor:
        """Return one field of AttentionStats for the whole model."""
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
        record=CalibrationRecord(one.num_sequences, T, positions, seed, source, heads=(L, H)),
    )
    _check_finite(calibration.kl_LH, live_LH)
    return calibration


def _check_finite(score_LH: Tensor, live_LH: Tensor) -> None:
    broken = [f"L{layer}H{head}" for layer, head in (live_LH & ~score_LH.isfinite()).nonzero().tolist()]
    if broken:
        more = f" and {len(broken) - 8} more" if len(broken) > 8 else ""
        raise ValueError(
            f"attention of {', '.join(broken[:8])}{more} (layer, head) is not finite on the calibration data: "
            "the weights or activations hold NaN or infinity, as after a run has diverged"
        )
