"""Choose the edges from queries to keys that an intervention removes, and remove them in a forward.

Legend: B sequences, T time (queries and keys), X = H by head and 1 by token.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from saf_titan.analysis.layer import LayerAttention
from saf_titan.analysis.patterns import head_outputs
from saf_titan.analysis.removal import EdgeWay, edit_edges
from saf_titan.ops.attention_stats import hidden_keys

Side = Literal["top", "bottom"]


def visible_keys(layer: LayerAttention) -> Tensor:
    """Return a mask (T, T), True where a query sees a key."""
    return ~hidden_keys(0, layer.seq_len, layer.window, layer.v_BTKD.device)


def places(scores_BXTT: Tensor, visible_TT: Tensor) -> Tensor:
    """Return the rank of every key in the row of its query, int16 (B, X, T, T): 0 for the best score, T if not visible.

    Of equal scores the earlier key is better.
    """
    T = scores_BXTT.shape[-1]
    order = scores_BXTT.masked_fill(~visible_TT, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    place = torch.empty_like(order, dtype=torch.int16)
    place.scatter_(-1, order, torch.arange(T, dtype=torch.int16, device=order.device).expand_as(order))
    return place.masked_fill_(~visible_TT, T)


def removed_edges(place_BXTT: Tensor, visible_TT: Tensor, *, fraction: float, side: Side, spares_first: bool) -> Tensor:
    """Return a mask (B, X, T, T), True where a query loses a key: the best or worst of its candidates.

    Args:
        place_BXTT: the ranks that `places` returns.
        fraction: share of the candidates of each query that it loses, in (0, 1]; rounded up to whole keys.
        spares_first: the first position is no candidate; keys ranked behind it move up by one.
    """
    place = place_BXTT.int()
    count_T1 = visible_TT.sum(-1, keepdim=True)
    is_candidate = visible_TT
    if spares_first:
        place = place - (place > place[..., :1]).int()
        is_candidate = visible_TT.clone()
        is_candidate[:, 0] = False
        count_T1 = is_candidate.sum(-1, keepdim=True)
    # subtract a little, so that 10 % of 10 keys are one key although 0.1 is not exact in binary
    lost_T1 = (fraction * count_T1.double() - 1e-9).ceil().clamp(min=0).int()
    chosen = place < lost_T1 if side == "top" else place >= count_T1 - lost_T1
    return chosen & is_candidate


class RemovingEdges:
    """A callback for `watching` that replaces the outputs of the heads by those without the removed edges.

    ranks: by layer, what `places` returns; layers that are not in it stay as they are.
    """

    def __init__(self, ranks: dict[int, Tensor], way: EdgeWay, spares_first: bool, side: Side, fraction: float) -> None:
        self._ranks, self._way, self._spares_first = ranks, way, spares_first
        self._side, self._fraction = side, fraction

    def __call__(self, layer: LayerAttention) -> Tensor | None:
        if layer.layer not in self._ranks:
            return None
        visible_TT = visible_keys(layer)
        removed = removed_edges(
            self._ranks[layer.layer],
            visible_TT,
            fraction=self._fraction,
            side=self._side,
            spares_first=self._spares_first,
        )
        return head_outputs(edit_edges(layer.rows(), removed, self._way, visible_TT=visible_TT), layer.v_BTKD)
