"""Identify a model of transformers, so that statistics and plans are not used for another model."""

from __future__ import annotations

from typing import Any

from saf_titan.saf.calibrate.model_identity import WEIGHTS, weights_digest
from saf_titan.saf.plan.plan import StaticPlan

PREFIX = "saf_titan_"
"""Prefix of the ``model_type`` of our classes."""


def model_identity(model: Any) -> dict[str, Any]:
    """Return sizes and constants of a model, and a digest of samples of its weights."""
    config, attention = model.config, model.attentions[0]
    C, width = attention.layout.output_weight.shape
    rope = getattr(config, "rope_parameters", None) or {}
    return {
        "model_type": config.model_type.removeprefix(PREFIX),
        "num_layers": len(model.attentions),
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "head_dim": width // attention.num_heads,
        "dim": C,
        "vocab_size": config.vocab_size,
        "rope_theta": rope.get("rope_theta"),
        "sliding_window": getattr(config, "sliding_window", None),
        WEIGHTS: weights_digest("all weights", (weight for _, weight in sorted(model.named_parameters()))),
    }


def require_same_size(plan: StaticPlan, num_layers: int, num_heads: int) -> None:
    """Raise ValueError if a plan belongs to a model with other numbers of layers and of heads per layer."""
    size = plan.record.heads
    if size is not None and size != (num_layers, num_heads):
        raise ValueError(
            f"the plan is of a model with {size[0]} layers of {size[1]} heads, and this one has {num_layers} of "
            f"{num_heads}"
        )
    if wrong := [head.name for head in plan.heads if head.layer >= num_layers or head.head >= num_heads]:
        raise ValueError(
            f"the plan has heads {', '.join(wrong)}, and the model {num_layers} layers of {num_heads} heads"
        )
