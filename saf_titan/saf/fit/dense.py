"""Make dense patterns of chosen heads, as controls for compact patterns, by another forward of the calibration batches.

The contents are files in `contents/`. Rows are computed in blocks, all sequences of a block at once, so that O(T)
memory beside the result itself is enough. A head's random numbers depend only on the seed and its place in the model.

Legend: N heads, B sequences, T time, D head dim, R rows of a block, J keys that it sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from saf_titan.heads.names import Head
from saf_titan.ops.attention_stats import cap_scores, hidden_keys, map_heads
from saf_titan.saf.calibrate.capture import Batch, CapturableAttention, LayerCapture, Progress, capture_layers
from saf_titan.saf.calibrate.exchange import HeadExchange, sum_over_ranks
from saf_titan.saf.fit.content import DIRICHLET_SCALE, RowMaker
from saf_titan.saf.fit.registry import DENSE_CONTENTS
from saf_titan.saf.fit.slots import slot_generator

_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class DensePatterns:
    """Patterns of N heads in the order they were asked for, on the CPU."""

    p_NTT: Tensor
    """float32; rows sum to 1, zero above the diagonal."""
    kl_N: Tensor
    """Mean KL of a row from the mean attention to the pattern, nats, float64; 0 for the mean itself."""


def dense_patterns(
    attentions: Sequence[CapturableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    heads: Sequence[Head],
    content: str,
    *,
    seed: int = 0,
    dirichlet_scale: float = DIRICHLET_SCALE,
    group: dist.ProcessGroup | None = None,
    progress: Progress | None = None,
) -> DensePatterns:
    """Return the dense patterns of live heads, the same on every rank and for every number of ranks.

    Args:
        attentions, batches, forward, group, progress: as in `calibrate`, where the same batches may be used. Runs one
            forward per batch.
        heads: (layer, head), each once.
        content: the name of a dense content, see `registry.DENSE_CONTENTS`.
        seed: seed of the contents that draw random numbers.
        dirichlet_scale: for the content dirichlet, the factor on the precision of the attention.

    Raises ValueError if some of the heads are static already.
    """
    make_rows = DENSE_CONTENTS[content].rows
    if DENSE_CONTENTS[content].takes_scale:
        make_rows = partial(make_rows, scale=dirichlet_scale)
    place = {slot: n for n, slot in enumerate(heads)}
    wanted = {layer: [head for other, head in heads if other == layer] for layer, _ in heads}
    exchange, num_heads = HeadExchange(group), attentions[0].num_heads
    p_NTT = torch.zeros(0)
    kl_N = torch.zeros(len(heads), dtype=torch.float64)
    done = 0

    def reduce(layer: int, capture: LayerCapture) -> None:
        nonlocal done, p_NTT
        q_BTUD, k_BTUD = capture.of_all_sequences(exchange, layer)
        if not done:
            p_NTT = torch.zeros(len(heads), q_BTUD.shape[1], q_BTUD.shape[1])
        scale = 1 / math.sqrt(q_BTUD.shape[3]) if capture.scale is None else capture.scale

        def fill(share: tuple[int, int]) -> None:
            u, item = share
            head = capture.heads[item]
            n, generator = place[layer, head], slot_generator(seed, layer * num_heads + head)
            q_BTD, k_BTD = q_BTUD[:, :, u] * scale, k_BTUD[:, :, u]
            kl_N[n] = _fill_pattern(p_NTT[n], make_rows, q_BTD, k_BTD, capture, generator)

        map_heads(fill, enumerate(exchange.owned(len(capture.heads), exchange.rank, layer)), q_BTUD.device)
        done += len(capture.heads)
        if progress:
            progress("patterns", done, len(heads))

    capture_layers(attentions, batches, forward, reduce, wanted=wanted, progress=progress)
    if done < len(heads):
        raise ValueError(f"only {done} of {len(heads)} heads have queries: the others are static already")
    if exchange.parallel:
        # each head is filled in on one rank and zero on the others; sum one head at a time, to bound the memory
        for p_TT in p_NTT:
            p_TT.copy_(sum_over_ranks(p_TT, group))
        kl_N = sum_over_ranks(kl_N, group)
    return DensePatterns(p_NTT, kl_N)


def _fill_pattern(
    p_TT: Tensor, make_rows: RowMaker, q_BTD: Tensor, k_BTD: Tensor, capture: LayerCapture, generator: torch.Generator
) -> float:
    """Write one head's pattern to p_TT, block by block; return the mean KL of a row, in nats, as `kl_N`."""
    B, T, _ = q_BTD.shape
    tiny = torch.finfo(torch.float32).tiny
    rows = min(max(_TILE_ELEMENTS // (B * T), 16), 128)
    q_BTD, k_BTD = q_BTD.float(), k_BTD.float().contiguous()
    total = 0.0
    for start in range(0, T, rows):
        stop = min(start + rows, T)
        scores_BRJ = cap_scores(torch.bmm(q_BTD[:, start:stop], k_BTD[:, :stop].mT), capture.softcap)
        hidden_RJ = hidden_keys(start, stop, capture.window, q_BTD.device)
        probs_BRJ = scores_BRJ.masked_fill(hidden_RJ, -math.inf).softmax(2)
        mean_RJ = probs_BRJ.mean(0)
        p_RJ = make_rows(scores_BRJ, probs_BRJ, hidden_RJ, generator).to(mean_RJ)
        p_TT[start:stop, :stop] = p_RJ
        log_ratio_RJ = mean_RJ.clamp(min=tiny).log() - p_RJ.clamp(min=tiny).log()
        total += (mean_RJ * log_ratio_RJ).sum(dtype=torch.float64).item()
    return max(total / T, 0.0)
