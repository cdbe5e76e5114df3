"""Weights of our decoder `gpt` as those of GPT-NeoX (rotary positions) or GPT-2 (learned positions) in transformers.

Both classes have biases, which become zero for a model without biases, and one kv head for each query head, so shared
kv heads are repeated. Nothing is rounded: the conversion back gives the same bytes.

Legend: V vocabulary, C model width, H query heads, K kv heads, D head dim, X heads of one projection (H or K).
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
    """Return the configuration of transformers for the model of a `gpt` run."""
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
    # transformers calls the tanh approximation of GELU gelu_new
    activation = "gelu_new" if model.gelu == "tanh" else "gelu"
    if model.position == "learned":
        no_dropout: dict[str, Any] = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        return GPT2Config(**shared, activation_function=activation, layer_norm_epsilon=model.norm_eps, **no_dropout)
    return GPTNeoXConfig(
        **shared,
        intermediate_size=4 * shape.dim,
        hidden_act=activation,
        use_parallel_residual=False,
        layer_norm_eps=model.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta, "partial_rotary_factor": 1.0},
    )


@dataclass(frozen=True)
class _Names:
    """The names of our modules in a class of transformers, and the layout of their weights and biases there."""

    embedding: str
    norm: str
    layer: str
    """Prefix of the names of a layer; {} stands for its number."""
    fused: str
    """Name of the projection that computes queries, keys and values."""
    in_layer: dict[str, str]
    """Names of the other projections and norms of a layer: our name to the name there."""
    heads_first: bool
    """Whether the rows of the fused projection are ordered by head, then by query, key, value; else the reverse."""
    transposed: bool
    """Whether the matrices of a layer have the shape (inputs, outputs)."""
    positions: str | None = None
    """Name of the learned positions; None without them."""

    @property
    def split_dim(self) -> int:
        """Return the dimension of queries, keys and values in the fused rows (H, 3, D, ...) or (3, H, D, ...)."""
        return 1 if self.heads_first else 0

    def turned(self, weight: Tensor) -> Tensor:
        """Return a matrix of a layer in the orientation of the class, or back in ours; biases stay as they are."""
        return weight.T.contiguous() if self.transposed and weight.ndim == 2 else weight


_NEOX = _Names(
    embedding="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    layer="gpt_neox.layers.{}.",
    fused="attention.query_key_value",
    in_layer={
        "attention.wo": "attention.dense",
        "feed_forward.w1": "mlp.dense_h_to_4h",
        "feed_forward.w2": "mlp.dense_4h_to_h",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    },
    heads_first=True,
    transposed=False,
)
_GPT2 = _Names(
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    fused="attn.c_attn",
    in_layer={
        "attention.wo": "attn.c_proj",
        "feed_forward.w1": "mlp.c_fc",
        "feed_forward.w2": "mlp.c_proj",
        "attention_norm": "ln_1",
        "ffn_norm": "ln_2",
    },
    heads_first=False,
    transposed=True,
)


def _names(run: RunConfig) -> _Names:
    return _GPT2 if run.model.position == "learned" else _NEOX


def _parts(run: RunConfig) -> tuple[str, ...]:
    """Return the names of the parameters that each projection and norm has."""
    return ("weight", "bias") if run.model.bias else ("weight",)


def gpt_to_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Return our weights under the names of GPT-2 or GPT-NeoX."""
    names = _names(run)
    named = {
        f"{names.embedding}.weight": weights["lm_head.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    if names.positions is not None:
        named[f"{names.positions}.weight"] = weights["pos_embeddings.weight"]
    for part in _parts(run):
        named[f"{names.norm}.{part}"] = weights[f"norm.{part}"]
        for layer in range(run.shape.num_layers):
            ours, theirs = f"layers.{layer}.", names.layer.format(layer)
            fused = torch.stack([_by_head(weights, ours, kind, part, run) for kind in "qkv"], dim=names.split_dim)
            named[f"{theirs}{names.fused}.{part}"] = names.turned(fused.flatten(0, 2))
            for own, other in names.in_layer.items():
                named[f"{theirs}{other}.{part}"] = names.turned(weights[f"{ours}{own}.{part}"])
    return named


def gpt_from_nanogpt(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Return weights of nanoGPT's `model.py` under our names; raises the errors of `gpt_from_hf`.

    nanoGPT has the names of GPT-2, but its matrices have the shape (outputs, inputs).
    """
    return _from_named(weights, run, dataclasses.replace(_GPT2, transposed=False))


def gpt_from_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    """Return weights of GPT-2 or GPT-NeoX under our names: the inverse of `gpt_to_hf`.

    Raises ValueError if a bias is not zero but the run's model has no biases, or if query heads that share a kv head in
    the run's model have different keys or values.
    """
    return _from_named(weights, run, _names(run))


def _from_named(weights: Mapping[str, Tensor], run: RunConfig, names: _Names) -> dict[str, Tensor]:
    if not run.model.bias and (wrong := [n for n, weight in weights.items() if n.endswith("bias") and weight.any()]):
        raise ValueError(f"{wrong[0]} is not zero, and the configured model has no biases: set model.bias = true")
    shape = run.shape
    named = {
        "tok_embeddings.weight": weights[f"{names.embedding}.weight"],
        "lm_head.weight": weights[f"{names.embedding}.weight"],
    }
    if names.positions is not None:
        named["pos_embeddings.weight"] = weights[f"{names.positions}.weight"]
    sizes = (shape.num_heads, 3, shape.head_dim) if names.heads_first else (3, shape.num_heads, shape.head_dim)
    for part in _parts(run):
        named[f"norm.{part}"] = weights[f"{names.norm}.{part}"]
        for layer in range(shape.num_layers):
            ours, theirs = f"layers.{layer}.", names.layer.format(layer)
            fused = names.turned(weights[f"{theirs}{names.fused}.{part}"]).unflatten(0, sizes)
            named |= _from_heads(dict(zip("qkv", fused.unbind(names.split_dim), strict=True)), ours, part, run)
            for own, other in names.in_layer.items():
                named[f"{ours}{own}.{part}"] = names.turned(weights[f"{theirs}{other}.{part}"])
    return named


def _by_head(weights: Mapping[str, Tensor], prefix: str, kind: str, part: str, run: RunConfig) -> Tensor:
    """Return the rows of a projection as (H, D, C), or its bias as (H, D); shared kv heads are repeated."""
    rows_XD = weights[f"{prefix}attention.qkv_linear.w{kind}.{part}"].unflatten(0, (-1, run.shape.head_dim))
    return rows_XD.repeat_interleave(run.shape.num_heads // len(rows_XD), dim=0)


def _from_heads(rows_HD: Mapping[str, Tensor], prefix: str, part: str, run: RunConfig) -> dict[str, Tensor]:
    """Return the queries, keys and values of a layer without repeated kv heads: the inverse of `_by_head`."""
    group = run.shape.num_heads // run.shape.num_kv_heads
    named = {}
    for kind, heads_HD in rows_HD.items():
        kept_XD = heads_HD if kind == "q" else heads_HD[::group]
        if kind != "q" and not torch.equal(kept_XD.repeat_interleave(group, dim=0), heads_HD):
            raise ValueError(f"{prefix}: heads that share a kv head have different rows of w{kind}.{part}")
        named[f"{prefix}attention.qkv_linear.w{kind}.{part}"] = kept_XD.flatten(0, 1).contiguous()
    return named
