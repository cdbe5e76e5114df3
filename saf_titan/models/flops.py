"""Floating-point operations of a training step, aware of static heads.

Counting rule (PaLM, arXiv 2204.02311, appendix B): 6 operations per token and matrix parameter, and for causal
attention 6 * T * D per head and per product (scores, values), the masked half not counted. A static head has no
query and key rows and no score product; its mixing is counted as the value product it replaces, whatever algorithm
carries it out, so that utilisation never profits from a cheaper algorithm.
"""

from __future__ import annotations

from torch import nn

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
        if not isinstance(attention, SAFAttention):
            continue
        num_live, num_static = len(attention.live_heads), len(attention.static_heads)
        head_dim, dim = attention.head_dim, attention.wo.in_features
        # a static head mixes values and has no query and key rows; a pruned one has no rows at all
        mixed, rows = (0, 4) if attention.is_pruned else (num_static, 2)
        flops += 6 * seq_len * head_dim * (2 * num_live + mixed)
        flops -= 6 * rows * num_static * head_dim * dim
    return flops
