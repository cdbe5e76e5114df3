"""Our decoder `gpt` in the classes of transformers: GPT-NeoX with rotary positions, GPT-2 with learned ones.

Both classes have biases, which are zero here, and a key and a value head for each query head: shared kv heads are
repeated. Nothing is rounded, so the way back gives the same bytes.

Legend: V vocabulary, C width, H query heads, K kv heads, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Names:
    """What a class of transformers calls our weights, and how it lays them out."""

    embedding: str
    norm: str
    layer: str
    """Prefix of layer {}."""
    fused: str
    """Queries, keys and values in one matrix."""
    in_layer: dict[str, str]
    """The other matrices and norms of a layer, ours to theirs."""
    heads_first: bool
    """The fused matrix goes through the heads, of each its queries, keys and values; else the other way round."""
    transposed: bool
    """Matrices of a layer are (in, out)."""
    positions: str | None = None

    @property
    def split_dim(self) -> int:
        """Where the fused rows, as (H, 3, D, C) or (3, H, D, C), are divided into queries, keys and values."""
        return 1 if self.heads_first else 0

    def turned(self, weight: Tensor) -> Tensor:
        """A matrix of a layer from our orientation to theirs, or back."""
        return weight.T.contiguous() if self.transposed and weight.ndim == 2 else weight


_NEOX = _Names(
    embedding="gpt_neox.embed_in.weight",
    norm="gpt_neox.final_layer_norm.weight",
    layer="gpt_neox.layers.{}.",
    fused="attention.query_key_value.weight",
    in_layer={
        "attention.wo.weight": "attention.dense.weight",
        "feed_forward.w1.weight": "mlp.dense_h_to_4h.weight",
        "feed_forward.w2.weight": "mlp.dense_4h_to_h.weight",
        "attention_norm.weight": "input_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
    },
    heads_first=True,
    transposed=False,
)
_GPT2 = _Names(
    embedding="transformer.wte.weight",
    positions="transformer.wpe.weight",
    norm="transformer.ln_f.weight",
    layer="transformer.h.{}.",
    fused="attn.c_attn.weight",
    in_layer={
        "attention.wo.weight": "attn.c_proj.weight",
        "feed_forward.w1.weight": "mlp.c_fc.weight",
        "feed_forward.w2.weight": "mlp.c_proj.weight",
        "attention_norm.weight": "ln_1.weight",
        "ffn_norm.weight": "ln_2.weight",
    },
    heads_first=False,
    transposed=True,
)


def _names(run: RunConfig) -> _Names:
    return _GPT2 if run.model.position == "learned" else _NEOX


def gpt_to_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Our weights under the names of GPT-2 or GPT-NeoX."""
    names = _names(run)
    named = {
        names.embedding: weights["lm_head.weight"],
        "lm_head.weight": weights["lm_head.weight"],
        names.norm: weights["norm.weight"],
    }
    if names.positions is not None:
        named[names.positions] = weights["pos_embeddings.weight"]
    for layer in range(run.shape.num_layers):
        ours, theirs = f"layers.{layer}.", names.layer.format(layer)
        fused = torch.stack([_by_head(weights, ours, kind, run) for kind in "qkv"], dim=names.split_dim)
        named[theirs + names.fused] = names.turned(fused.flatten(0, 2))
        for own, other in names.in_layer.items():
            named[theirs + other] = names.turned(weights[ours + own])
    return named


def gpt_from_nanogpt(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """The weights of nanoGPT's `model.py`: names of GPT-2, matrices (out, in). Errors as `gpt_from_hf`."""
    return _from_named(weights, run, dataclasses.replace(_GPT2, transposed=False))


def gpt_from_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Inverse of `gpt_to_hf`.

    Raises ValueError if a bias is not zero, or heads that share keys or values have different ones.
    """
    return _from_named(weights, run, _names(run))


def _from_named(weights: Mapping[str, Tensor], run: RunConfig, names: _Names) -> dict[str, Tensor]:
    if wrong := [name for name, weight in weights.items() if name.endswith("bias") and weight.any()]:
        raise ValueError(f"{wrong[0]} is not zero, and family gpt has no biases")
    shape = run.shape
    named = {
        "tok_embeddings.weight": weights[names.embedding],
        "lm_head.weight": weights[names.embedding],
        "norm.weight": weights[names.norm],
    }
    if names.positions is not None:
        named["pos_embeddings.weight"] = weights[names.positions]
    sizes = (shape.num_heads, 3, shape.head_dim) if names.heads_first else (3, shape.num_heads, shape.head_dim)
    for layer in range(shape.num_layers):
        ours, theirs = f"layers.{layer}.", names.layer.format(layer)
        fused = names.turned(weights[theirs + names.fused]).unflatten(0, sizes)
        named |= _from_heads(dict(zip("qkv", fused.unbind(names.split_dim), strict=True)), ours, run)
        for own, other in names.in_layer.items():
            named[ours + own] = names.turned(weights[theirs + other])
    return named


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
