"""Our decoder `gpt` in the classes of transformers: GPT-NeoX with rotary positions, GPT-2 with learned ones.

Both classes have biases, which are zero here, and a key and a value head for each query head: shared kv heads are
repeated. Nothing is rounded, so the way back gives the same bytes.

Legend: V vocabulary, C width, H query heads, K kv heads, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPTNeoXConfig, PreTrainedConfig

from saf_titan.config import RunConfig


def gpt_config_of(run: RunConfig) -> PreTrainedConfig:
    """The configuration of the class that a `gpt` run is exported to."""
    shape, model = run.shape, run.model
    shared: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": run.training.seq_len,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if model.position == "learned":
        no_dropout: dict[str, Any] = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        return GPT2Config(**shared, activation_function="gelu", layer_norm_epsilon=model.norm_eps, **no_dropout)
    return GPTNeoXConfig(
        **shared,
        intermediate_size=4 * shape.dim,
        hidden_act="gelu",
        use_parallel_residual=False,
        layer_norm_eps=model.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta, "partial_rotary_factor": 1.0},
    )


def gpt_to_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Our weights under the names of GPT-2 or GPT-NeoX."""
    return (_to_gpt2 if run.model.position == "learned" else _to_neox)(weights, run)


def gpt_from_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Inverse of `gpt_to_hf`.

    Raises ValueError if a bias is not zero, or heads that share keys or values have different ones.
    """
    if wrong := [name for name, weight in weights.items() if name.endswith("bias") and weight.any()]:
        raise ValueError(f"{wrong[0]} is not zero, and family gpt has no biases")
    return (_from_gpt2 if run.model.position == "learned" else _from_neox)(weights, run)


_NEOX_NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GPT2_NORMS = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}


def _to_neox(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    named = {
        "gpt_neox.embed_in.weight": weights["lm_head.weight"],
        "gpt_neox.final_layer_norm.weight": weights["norm.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    for layer in range(run.shape.num_layers):
        ours, theirs = f"layers.{layer}.", f"gpt_neox.layers.{layer}."
        heads_HDC = [_by_head(weights, ours, kind, run) for kind in "qkv"]
        named[f"{theirs}attention.query_key_value.weight"] = torch.stack(heads_HDC, dim=1).flatten(0, 2)
        named[f"{theirs}attention.dense.weight"] = weights[f"{ours}attention.wo.weight"]
        named[f"{theirs}mlp.dense_h_to_4h.weight"] = weights[f"{ours}feed_forward.w1.weight"]
        named[f"{theirs}mlp.dense_4h_to_h.weight"] = weights[f"{ours}feed_forward.w2.weight"]
        for norm, name in _NEOX_NORMS.items():
            named[f"{theirs}{name}.weight"] = weights[f"{ours}{norm}.weight"]
    return named


def _from_neox(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    ours_named = {
        "tok_embeddings.weight": weights["gpt_neox.embed_in.weight"],
        "lm_head.weight": weights["gpt_neox.embed_in.weight"],
        "norm.weight": weights["gpt_neox.final_layer_norm.weight"],
    }
    for layer in range(run.shape.num_layers):
        ours, theirs = f"layers.{layer}.", f"gpt_neox.layers.{layer}."
        fused_HXDC = weights[f"{theirs}attention.query_key_value.weight"].unflatten(
            0, (run.shape.num_heads, 3, run.shape.head_dim)
        )
        ours_named |= _from_heads(dict(zip("qkv", fused_HXDC.unbind(1), strict=True)), ours, run)
        ours_named[f"{ours}attention.wo.weight"] = weights[f"{theirs}attention.dense.weight"]
        ours_named[f"{ours}feed_forward.w1.weight"] = weights[f"{theirs}mlp.dense_h_to_4h.weight"]
        ours_named[f"{ours}feed_forward.w2.weight"] = weights[f"{theirs}mlp.dense_4h_to_h.weight"]
        for norm, name in _NEOX_NORMS.items():
            ours_named[f"{ours}{norm}.weight"] = weights[f"{theirs}{name}.weight"]
    return ours_named


def _to_gpt2(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    named = {
        "transformer.wte.weight": weights["lm_head.weight"],
        "transformer.wpe.weight": weights["pos_embeddings.weight"],
        "transformer.ln_f.weight": weights["norm.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    for layer in range(run.shape.num_layers):
        ours, theirs = f"layers.{layer}.", f"transformer.h.{layer}."
        rows_XC = torch.cat([_by_head(weights, ours, kind, run).flatten(0, 1) for kind in "qkv"])
        # GPT-2 keeps its matrices transposed
        named[f"{theirs}attn.c_attn.weight"] = rows_XC.T.contiguous()
        named[f"{theirs}attn.c_proj.weight"] = weights[f"{ours}attention.wo.weight"].T.contiguous()
        named[f"{theirs}mlp.c_fc.weight"] = weights[f"{ours}feed_forward.w1.weight"].T.contiguous()
        named[f"{theirs}mlp.c_proj.weight"] = weights[f"{ours}feed_forward.w2.weight"].T.contiguous()
        for norm, name in _GPT2_NORMS.items():
            named[f"{theirs}{name}.weight"] = weights[f"{ours}{norm}.weight"]
    return named


def _from_gpt2(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    ours_named = {
        "tok_embeddings.weight": weights["transformer.wte.weight"],
        "lm_head.weight": weights["transformer.wte.weight"],
        "pos_embeddings.weight": weights["transformer.wpe.weight"],
        "norm.weight": weights["transformer.ln_f.weight"],
    }
    for layer in range(run.shape.num_layers):
        ours, theirs = f"layers.{layer}.", f"transformer.h.{layer}."
        rows_XHDC = weights[f"{theirs}attn.c_attn.weight"].T.unflatten(0, (3, run.shape.num_heads, run.shape.head_dim))
        ours_named |= _from_heads(dict(zip("qkv", rows_XHDC.unbind(0), strict=True)), ours, run)
        ours_named[f"{ours}attention.wo.weight"] = weights[f"{theirs}attn.c_proj.weight"].T.contiguous()
        ours_named[f"{ours}feed_forward.w1.weight"] = weights[f"{theirs}mlp.c_fc.weight"].T.contiguous()
        ours_named[f"{ours}feed_forward.w2.weight"] = weights[f"{theirs}mlp.c_proj.weight"].T.contiguous()
        for norm, name in _GPT2_NORMS.items():
            ours_named[f"{ours}{norm}.weight"] = weights[f"{theirs}{name}.weight"]
    return ours_named


def _by_head(weights: Mapping[str, Tensor], prefix: str, kind: str, run: RunConfig) -> Tensor:
    """The rows of a projection as (H, D, C), those of shared kv heads repeated."""
    rows_XDC = weights[f"{prefix}attention.qkv_linear.w{kind}.weight"].unflatten(0, (-1, run.shape.head_dim))
    return rows_XDC.repeat_interleave(run.shape.num_heads // len(rows_XDC), dim=0)


def _from_heads(rows_HDC: Mapping[str, Tensor], prefix: str, run: RunConfig) -> dict[str, Tensor]:
    """Inverse of `_by_head` for a layer's queries, keys and values."""
    group = run.shape.num_heads // run.shape.num_kv_heads
    named = {}
    for kind, heads_HDC in rows_HDC.items():
        kept_XDC = heads_HDC if kind == "q" else heads_HDC[::group]
        if kind != "q" and not torch.equal(kept_XDC.repeat_interleave(group, dim=0), heads_HDC):
            raise ValueError(f"{prefix}: heads that share a kv head have different rows of w{kind}")
        named[f"{prefix}attention.qkv_linear.w{kind}.weight"] = kept_XDC.flatten(0, 1).contiguous()
    return named
