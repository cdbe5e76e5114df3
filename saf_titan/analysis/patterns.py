"""The attention patterns of every head in a forward, of our decoders and of `saf_titan.hf` models alike.

The pattern of a static head is its attention. A caller sees patterns layer by layer and may change them, in which case
the layer goes on with the changed pattern.

Legend: B sequences, T time, R queries, J keys, H heads with an output (all but pruned ones), K heads of the values,
D head width, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from saf_titan.analysis.layer import LayerAttention, watching

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

    def change(layer: LayerAttention) -> Tensor | None:
        changed = use(layer.layer, layer.rows(dtype=torch.float64))
        return None if changed is None else head_outputs(changed, layer.v_BTKD)

    with watching(attentions, change):
        yield


def head_outputs(p_BHRJ: Tensor, v_BTKD: Tensor) -> Tensor:
    """Return the outputs (B, R, H, D) of heads whose attention over the first J keys is `p_BHRJ`."""
    (B, H, R, J), K = p_BHRJ.shape, v_BTKD.shape[2]
    dtype = torch.promote_types(v_BTKD.dtype, torch.float32)
    # one product for all query heads that share a kv head
    p_BKXJ = p_BHRJ.to(dtype).unflatten(1, (K, H // K)).flatten(2, 3)
    y_BKXD = p_BKXJ @ v_BTKD[:, :J].transpose(1, 2).to(dtype)
    return y_BKXD.view(B, H, R, -1).transpose(1, 2)


def attention_from(
    attentions: Sequence[Any], forward: Callable[[Tensor], object], tokens_BT: Tensor, rows_B: Tensor
) -> Tensor:
    """Return the attention of each head at one query of each sequence, float64 (B, L, H, T).

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
            f"layers have {[row.shape[1] for row in rows.values()]} heads with an output, expected equal numbers"
        )
    return torch.stack([rows[layer] for layer in range(len(attentions))], dim=1)
