"""torchtitan's own Llama 3 flavours, with the attention that our loader's plain causal windows need."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.protocols.model_spec import ModelSpec

from saf_titan import compat
from saf_titan.models.parallelize import use_sum_reduction


def llama3_spec(flavor: str) -> ModelSpec:
    """Stock spec of ``flavor``, its masked attention replaced by causal scaled dot-product attention.

    torchtitan's flex and varlen back ends want document positions, which windows of a token stream do not have, and
    flex has no backward on the CPU.
    """
    spec = model_registry(flavor, attn_backend="flex")
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    if not compat.is_cpu():
        return spec

    def parallelize(model: nn.Module, **kwargs: Any) -> nn.Module:
        model = spec.parallelize_fn(model, **kwargs)
        use_sum_reduction(model)
        return model

    return dataclasses.replace(spec, parallelize_fn=parallelize)
