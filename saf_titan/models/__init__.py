"""Decoders: ours (gpt) and torchtitan's own (llama3, qwen3)."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from torchtitan.protocols.model_spec import ModelSpec

from saf_titan.config.own_sections import ModelSection
from saf_titan.config.shapes import ModelShape
from saf_titan.models.gpt import gpt_config
from saf_titan.models.parallelize import parallelize_decoder
from saf_titan.models.titan import titan_spec


def model_spec(model: ModelSection, shape: ModelShape, *, max_seq_len: int, autocast: bool = False) -> ModelSpec:
    """Return torchtitan's ``ModelSpec`` of ``model`` for sequences of up to ``max_seq_len`` tokens.

    autocast: gpt: matrix products in bfloat16 by torch.autocast, see `GPT.Config`.
    """
    if model.family != "gpt":
        assert not autocast, "the configuration refuses it"
        return titan_spec(
            model.family,
            model.flavor,
            shape,
            fuse_qkv=model.fuse_qkv,
            attention_backend=model.attention_backend,
        )
    config = gpt_config(
        shape,
        max_seq_len=max_seq_len,
        position=model.position,
        rope_theta=model.rope_theta,
        init_std=model.init_std,
        norm_eps=model.norm_eps,
        bias=model.bias,
        gelu=model.gelu,
        attention_backend=model.attention_backend,
        autocast=autocast,
    )
    return ModelSpec(
        name="gpt",
        flavor=model.flavor,
        model=config,
        parallelize_fn=parallelize_decoder,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )
