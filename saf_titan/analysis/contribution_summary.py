"""Sums of the contribution weights of a layer in O(T) memory: attention rows are computed and summed block by block.

Legend: B sequences, T time (query i, key j, lag i - j), R queries of a row block, J keys that the block sees, H heads,
N keys that are kept of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saf_titan.analysis.contribution import HeadValues, Level, contribution_weights
from saf_titan.ops.attention_stats import diagonal_sums

_BLOCK_ELEMENTS = 1 << 20
"""Approximate number of entries (B, H, R, J) of a block; about five such tensors exist at a time."""

_SHORTEST_BLOCK = 128
"""In blocks of fewer rows, the overhead of the calls takes longer than the computation."""

Rows = Callable[[int, int], Tensor]
"""Attention of the queries start <= i < stop over the keys j < stop, (B, H, R, stop); `LayerAttention.rows` is one."""


@dataclass(frozen=True)
class ContributionSummary:
    """Contribution weights of one layer, summed over queries. Rows without a direction count as zero.

    Sums over queries are float64 and averaged over sequences. The sums `weight_by_key_HT` and `weight_by_lag_HT` add up
    to T: at the head level for each head, at the layer level over all heads.
    """

    level: Level
    weight_by_key_HT: Tensor
    """sum_i c_ij."""
    weight_by_lag_HT: Tensor
    """sum_i c_i,i-k."""
    size_by_key_HT: Tensor
    """sum_i |c_ij|."""
    attention_by_key_HT: Tensor
    attention_by_lag_HT: Tensor
    sink_weight_BHT: Tensor
    """c_i0 of every query: what the first position contributes."""
    sink_attention_BHT: Tensor
    share_BHT: Tensor
    """sum_j c_ij: 1 at the head level, the share of the head at the layer level."""
    top_weight_BHTN: Tensor
    """The largest weights of each row, descending; 0 where a row has fewer keys."""
    top_key_BHTN: Tensor
    """Their keys, int64; -1 where a row has fewer keys."""
    num_undefined: int
    """Rows without a direction."""
    window: int | None = None
    """How many of the latest keys a query sees, its own included; None for all."""

    @property
    def sink_share_H(self) -> Tensor:
        """Mean contribution of the first position to the later queries that see it; NaN if there are none."""
        return self.sink_weight_BHT[..., 1 : self.window].double().mean((0, 2))

    @property
    def sink_attention_H(self) -> Tensor:
        """Mean attention on the first position of the later queries that see it, in [0, 1]; NaN if there are none."""
        return self.sink_attention_BHT[..., 1 : self.window].double().mean((0, 2))


def summarize_contributions(
    rows: Rows,
    values: HeadValues,
    *,
    level: Level = "head",
    top: int = 8,
    row_block: int | None = None,
    window: int | None = None,
) -> ContributionSummary:
    """Return the summary of a layer, with O(B H T) extra memory beside one block of rows.

    Args:
        rows: gives attention rows by block.
        values: of all keys.
        top: N, how many keys to keep of each row.
        row_block: R, the number of queries in a block; by default a quarter of all, or fewer where a block would have
            more than about a million entries.
        window: how many of the latest keys a query sees, its own included; None for all. The means over queries of what
            the first position draws leave out queries that do not see it.

    The result depends on `row_block` by rounding only. Raises ValueError as `contribution_weights` does.
    """
    B, H, T, _ = values.v_BHTM.shape
    device = values.v_BHTM.device
    # short sequences are cut too: the first rows see few keys, and a block is computed up to its last query's key alone
    row_block = row_block or max(min(_BLOCK_ELEMENTS // (B * H * T), max(T // 4, _SHORTEST_BLOCK)), 1)

    def sums() -> Tensor:
        return torch.zeros(H, T, dtype=torch.float64, device=device)

    by_key, by_lag, size_by_key, attention_by_key, attention_by_lag = (sums() for _ in range(5))
    sink, sink_attention, share = (values.norm_BHT.new_zeros(B, H, T) for _ in range(3))
    top_weight = values.norm_BHT.new_zeros(B, H, T, top)
    top_key = torch.full((B, H, T, top), -1, device=device)
    num_undefined = 0
    for start in range(0, T, row_block):
        stop = min(start + row_block, T)
        p_BHRJ = rows(start, stop)
        found = contribution_weights(p_BHRJ, values, level=level, undefined=0.0)
        c_BHRJ = found.weight_BHRJ
        num_undefined += int((~found.is_defined_BGR).sum())
        share[:, :, start:stop] = c_BHRJ.sum(-1)
        sink[:, :, start:stop], sink_attention[:, :, start:stop] = c_BHRJ[..., 0], p_BHRJ[..., 0]
        # The rows of a block are added up in their own type: a sum in float64 would copy the block first.
        for by_key_HT, by_lag_HT, x_BHRJ in (
            (by_key, by_lag, c_BHRJ),
            (attention_by_key, attention_by_lag, p_BHRJ),
        ):
            x_HRJ = x_BHRJ[0] if B == 1 else x_BHRJ.mean(0)
            by_key_HT[:, :stop] += x_HRJ.sum(1)
            by_lag_HT[:, :stop] += diagonal_sums(x_HRJ, dtype=x_HRJ.dtype)
        size_by_key[:, :stop] += c_BHRJ.abs().sum((0, 2)) / B
        if top:
            _keep_top(c_BHRJ, top_weight[:, :, start:stop], top_key[:, :, start:stop])
    return ContributionSummary(
        level=level,
        weight_by_key_HT=by_key,
        weight_by_lag_HT=by_lag,
        size_by_key_HT=size_by_key,
        attention_by_key_HT=attention_by_key,
        attention_by_lag_HT=attention_by_lag,
        sink_weight_BHT=sink,
        sink_attention_BHT=sink_attention,
        share_BHT=share,
        top_weight_BHTN=top_weight,
        top_key_BHTN=top_key,
        num_undefined=num_undefined,
        window=window,
    )


def _keep_top(c_BHRJ: Tensor, weight_BHRN: Tensor, key_BHRN: Tensor) -> None:
    """Write the largest weights of each row and their keys into the last two arguments; overwrites `c_BHRJ`.

    Keys behind the query are left out.
    """
    R, J = c_BHRJ.shape[2:]
    N = min(weight_BHRN.shape[-1], J)
    is_future_RJ = torch.ones(R, J, dtype=torch.bool, device=c_BHRJ.device).triu(J - R + 1)
    best = c_BHRJ.masked_fill_(is_future_RJ, -torch.inf).topk(N, dim=-1)
    is_key_BHRN = best.values > -torch.inf
    weight_BHRN[..., :N] = torch.where(is_key_BHRN, best.values, 0.0)
    key_BHRN[..., :N] = torch.where(is_key_BHRN, best.indices, -1)
