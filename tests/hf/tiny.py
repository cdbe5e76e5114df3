"""Tiny models with random weights, one of each architecture, and their definition in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from saf_titan.hf.model import model_class, our_config

V, T, WINDOW = 50, 24, 7
H, K, D = 4, 2, 8

_SHARED = {
    "vocab_size": V,
    "hidden_size": H * D,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": D,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": V, "n_embd": H * D, "n_layer": 2, "n_head": H, "n_positions": 64, "bos_token_id": 1}
    | {"eos_token_id": 2, "pad_token_id": 0, "scale_attn_by_inverse_layer_idx": True}
    | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    "gpt_neox": _SHARED | {"rotary_pct": 0.5, "hidden_act": "gelu"},
    "llama": _SHARED | {"attention_bias": True},
    "mistral": _SHARED | {"sliding_window": WINDOW},
    "qwen2": _SHARED | _LAYERS | {"use_sliding_window": True},
    "qwen3": _SHARED,
    "gemma2": _SHARED | _LAYERS | {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 0.7},
    "gemma3_text": _SHARED | _LAYERS | {"query_pre_attn_scalar": 20},
    "olmo2": _SHARED,
    "smollm3": _SHARED | {"no_rope_layers": [1, 0]},
}
MODEL_TYPES = tuple(SETTINGS)


def tiny_config(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **SETTINGS[model_type] | changes)


def stock_model(model_type: str, attention: str = "eager", **changes: Any) -> Any:
    """A model of transformers with weights large enough that heads differ in what they attend to."""
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes), attn_implementation=attention)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator))
            else:
                noise = 0.1 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise + (0.0 if name.endswith("bias") or "gemma" in model_type else 1.0))
    return model.eval()


def our_model(model_type: str, **changes: Any) -> Any:
    """The same weights in our class."""
    stock = stock_model(model_type, **changes)
    config = our_config(stock.config)
    model = model_class(config)(config)
    model.load_state_dict(stock.state_dict())
    return model.eval()


def tokens(num_sequences: int = 6, length: int = T, seed: int = 0) -> Tensor:
    return torch.randint(3, V, (num_sequences, length), generator=torch.Generator().manual_seed(seed))
