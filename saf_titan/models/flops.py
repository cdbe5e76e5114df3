"""Floating-point operations of a training step, aware of static heads.

Counting rule (PaLM, arXiv 2204.02311, appendix B): 6 operations per token and matrix parameter, and for causal
attention 6 * T * D per head and per product (scores, values), the masked half not counted. A static head has no
query rows and no score product; its mixing is counted as the value product it replaces, whatever algorithm carries it
out, so that utilisation never profits from a cheaper algorithm. Key rows go with the last query head that reads them.
"""

from __future__ import annotations

from torch import nn
from torchtitan.models.common.attention import GQAttention

from saf_titan.layers.attention import SAFAttention


def training_flops_per_token(model: nn.Module, seq_len: int) -> int:
    """Forward and backward operations per token of a decoder at training length ``seq_len``.

    Embedding look-ups cost nothing; a tied output head is counted once, as the product it is.
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
    """What the static heads of a layer spare, per token."""
    num_static, dim = len(attention.static_heads), attention.wo.out_features
    num_unread = len(attention.qkv_linear.unused_heads(attention.static_heads, frees_values=attention.is_pruned).k)
    # a static head has no score product; a pruned one has no values and no part in the output either
    products, query_rows, key_rows = (2, 2, 2) if attention.is_pruned else (1, 1, 1)
    rows = query_rows * num_static + key_rows * num_unread
    return 6 * attention.head_dim * (products * num_static * seq_len + rows * dim)
