"""Floating-point operations of a training step, with static heads taken into account.

Counting rule (PaLM, arXiv 2204.02311, appendix B): 6 operations per token and matrix parameter, and for causal
attention 6 * T * D per head and per product (scores, values); the masked half is not counted. A static head has no
query rows and no score product. Its mixing is counted as the value product that it replaces, whatever algorithm does
it, so that a cheaper algorithm does not change the utilisation. The key rows of a kv head are counted as long as a
live query head reads them.
"""

from __future__ import annotations

from torch import nn
from torchtitan.models.common.attention import GQAttention

from saf_titan.layers.attention import SAFAttention


def training_flops_per_token(model: nn.Module, seq_len: int) -> int:
    """Return the forward and backward operations per token of a decoder at training length ``seq_len``.

    Embedding look-ups are not counted; a matrix tied to the output head is counted once, for the output product.
    """
    look_ups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)} - {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)
    }
    matrix_parameters = sum(
        parameter.numel() for parameter in model.parameters() if parameter.ndim >= 2 and id(parameter) not in look_ups
    )
    flops = 6 * matrix_parameters
    for attention in model.modules():
        if isinstance(attention, GQAttention):
            flops += 6 * seq_len * attention.head_dim * 2 * attention.n_heads
        if isinstance(attention, SAFAttention):
            flops -= _saved_flops(attention, seq_len)
    return flops


def _saved_flops(attention: SAFAttention, seq_len: int) -> int:
    """Return the operations per token that the static heads of a layer save."""
    num_static, dim = len(attention.static_heads), attention.wo.out_features
    num_unread = len(attention.qkv_linear.unused_heads(attention.static_heads, frees_values=attention.is_pruned).k)
    # a static head saves the score product and rows of wq and wk; a pruned head also saves values and output
    products, query_rows, key_rows = (2, 2, 2) if attention.is_pruned else (1, 1, 1)
    rows = query_rows * num_static + key_rows * num_unread
    return 6 * attention.head_dim * (products * num_static * seq_len + rows * dim)
