"""Attention modules whose weights lie in another way than a layout says: an error, and no row of a wrong head."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from saf_titan.hf.layer import attach

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50}


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        # c_attn is a linear layer, not transposed as in GPT-2
        ("gpt_bigcode", {"multi_query": True}, "c_attn maps 48 to 32 numbers, expected 32 to 96"),
        ("gpt_bigcode", {"multi_query": False}, "c_attn maps 96 to 32 numbers, expected 32 to 96"),
        # a head's values are narrower than its keys
        ("mimo_v2_flash", {"num_key_value_heads": 2, "head_dim": 8, "v_head_dim": 4}, "v_proj maps 32 to 8 numbers"),
        ("persimmon", {}, "PersimmonAttention has none of the known projections"),
        ("phi", {}, "PhiAttention has none of the known projections"),
        ("deepseek_v3", {}, "DeepseekV3Attention has none of the known projections"),
    ],
)
def test_other_layouts_are_refused(model_type: str, changes: dict[str, Any], message: str) -> None:
    config = AutoConfig.for_model(model_type, **SIZES | changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=message):
        attach(model)
