"""torchtitan's dense decoders (Llama 3, Qwen 3), either with attention that can have static heads or unchanged.

In both forms attention is causal over the whole window: torchtitan's flex and varlen backends need document positions,
which windows of a token stream do not have, and flex has no backward on the CPU. In both forms the weights in a
checkpoint have torchtitan's names and shapes.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from torch import nn
from torchtitan.models.common import Decoder, Linear
from torchtitan.models.common.attention import FusedQKVLinear, GQAttention, ScaledDotProductAttention
from torchtitan.protocols.model_spec import ModelSpec

from saf_titan import compat
from saf_titan.config.shapes import ModelShape
from saf_titan.layers.attention import MixedAttention, SAFAttention
from saf_titan.layers.qkv import SplitQKV
from saf_titan.models.decoder import FreezableDecoder
from saf_titan.models.init import draw_whole_tensors
from saf_titan.models.parallelize import parallelize_decoder, use_sum_reduction


def titan_spec(family: str, flavor: str, shape: ModelShape, *, fuse_qkv: bool, attention_backend: str) -> ModelSpec:
    """Return torchtitan's ``ModelSpec`` of a flavor, changed as the arguments say.

    Args:
        family: the name of a dense decoder of torchtitan.models.
        shape: the shape of the flavor; the vocabulary size may differ, and of the layers the first ones may be kept.
        fuse_qkv: leave the model unchanged, with one matrix for queries, keys and values. Otherwise each has its own
            matrix, attention is ours, and initial weights do not depend on the sharding.
        attention_backend: the backend of layers with live and static heads.
    """
    spec = importlib.import_module(f"torchtitan.models.{family}").model_registry(flavor, attn_backend="flex")
    del spec.model.layers[shape.num_layers :]
    spec.model.vocab_size = shape.vocab_size
    spec.model.tok_embeddings.num_embeddings = spec.model.lm_head.out_features = shape.vocab_size
    if fuse_qkv:
        return _as_it_is(spec)
    for layer in spec.model.layers:
        # torchtitan initialises wq, wk and wv like w1; use the initialiser of w1, because that of the fused matrix is
        # a closure from which the part for one projection cannot be taken
        layer.attention = _freezable(layer.attention, layer.feed_forward.w1.param_init, attention_backend)
    # the classes of the families only add shardings for tensor parallelism and a count of operations
    model = FreezableDecoder.Config(**_values(spec.model, Decoder.Config))
    draw_whole_tensors(model)
    return dataclasses.replace(
        spec, model=model, parallelize_fn=parallelize_decoder, pipelining_fn=None, post_optimizer_build_fn=None
    )


def _as_it_is(spec: ModelSpec) -> ModelSpec:
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    if not compat.is_cpu():
        return spec

    def parallelize(model: nn.Module, **kwargs: Any) -> nn.Module:
        model = spec.parallelize_fn(model, **kwargs)
        use_sum_reduction(model)
        return model

    return dataclasses.replace(spec, parallelize_fn=parallelize)


def _freezable(attention: GQAttention.Config, param_init: dict[str, Any], backend: str) -> SAFAttention.Config:
    fused: FusedQKVLinear.Config = attention.qkv_linear

    def projection(num_heads: int) -> Linear.Config:
        return Linear.Config(
            in_features=attention.dim, out_features=num_heads * fused.head_dim, param_init=dict(param_init)
        )

    split = SplitQKV.Config(
        head_dim=fused.head_dim,
        wq=projection(fused.n_heads),
        wk=projection(fused.n_kv_heads),
        wv=projection(fused.n_kv_heads),
    )
    inner_attention = MixedAttention.Config(num_heads=attention.n_heads, backend=backend)
    kept = _values(attention, GQAttention.Config)
    return SAFAttention.Config(**kept | {"qkv_linear": split, "inner_attention": inner_attention})


def _values(config: Any, fields_of: type) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(fields_of)}
