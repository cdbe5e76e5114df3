"""The attention function of our models: the model's own attention for live heads, fixed patterns for static heads.

transformers calls the function with queries and keys that are already normalised and rotated. The keys and values
include those of the cache. Further arguments say how the model computes scores (scale, cap, sliding window).

Legend: B sequences, R queries, J keys, H query heads, K kv heads, U live heads, S static heads, D head dim.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from saf_titan.hf.layer import HeadsOfLayer, heads_of
from saf_titan.hf.masks import CausalMask, causal_mask
from saf_titan.hf.static_heads import CompactMixer, mix_static
from saf_titan.ops import mixed_attention

ATTENTION = "saf_titan"
"""The name under which transformers knows the function: the value of ``attn_implementation``."""

# arguments of the attention interface that static heads cannot follow, and what each one means
_UNKNOWN_RULES = {
    "s_aux": "attention sinks beside the keys",
    "position_bias": "a bias of the scores by position",
    "cu_seq_lens_q": "packed sequences",
}


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **rule: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer, in the interface of transformers.

    query (B, H, R, D), key and value (B, K, J, D) -> output (B, R, H, D), and None in place of attention weights.

    Raises ValueError if static heads, or a calibration, cannot follow the model or its input. The message names the
    part of the model or input that is the reason.
    """
    layer = heads_of(module)
    if layer is None and getattr(getattr(module, "config", None), "saf_plan", None) is not None:
        raise ValueError(
            f"{type(module).__name__}: the model was saved with static heads, and this class holds no plan for them; "
            "load it with saf_titan.hf.load or AutoModelForCausalLM.from_pretrained"
        )
    if layer is None or layer.is_plain:
        return ordinary_attention(module, query, key, value, attention_mask, dropout, scaling, rule), None
    if query.shape[1] != layer.num_heads:
        raise ValueError(
            f"layer {layer.layer}: attention got {query.shape[1]} of the {layer.num_heads} heads: static heads need "
            "all heads on one device; load the model without tensor parallelism (tp_plan)"
        )
    mask = _require_causal(layer, attention_mask, rule)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layer.capture is not None:
        _hand_over(layer, query, key, mask, scale, rule.get("softcap"))
    if not layer.static_heads:
        y_BRHD = ordinary_attention(module, query, key, value, mask, dropout, scaling, rule)
    elif _is_plain_causal(layer, mask, rule, dropout):
        y_BRHD = _mixed(layer, query, key, value, mask, scale)
    else:
        y_BRHD = _beside(layer, query, key, value, mask, dropout, scale, rule)
    return layer.inner_attention(None, None, value.transpose(1, 2), y_BRHD), None


def ordinary_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | Tensor | None,
    dropout: float,
    scaling: float | None,
    rule: dict[str, Any],
) -> Tensor:
    """Compute the model's own attention, (B, R, H, D): torch's fused kernel, or eager attention for capped scores."""
    if rule.get("softcap") is None:
        visible = attention_mask.visible_B1RJ if isinstance(attention_mask, CausalMask) else attention_mask
        visible = None if visible is None else visible.to(query.device)
        y, _ = sdpa_attention_forward(module, query, key, value, visible, dropout=dropout, scaling=scaling, **rule)
        return y
    visible = attention_mask.all_visible_B1RJ if isinstance(attention_mask, CausalMask) else attention_mask
    if visible is None:
        raise ValueError("attention with capped scores needs the mask that its model makes")
    if visible.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        visible = torch.zeros_like(visible, dtype=query.dtype).masked_fill_(~visible, lowest).to(query.device)
    source = module.source if isinstance(module, _LiveHeads) else module
    eager = sys.modules[type(source).__module__].eager_attention_forward
    y, _ = eager(module, query, key, value, visible, dropout=dropout, scaling=scaling, **rule)
    return y


class _LiveHeads(SimpleNamespace):
    """Stands for the attention module when only its live heads are computed.

    It has the attributes that the model's own attention reads from its module. Each live head comes with its own key
    and value head.
    """


def _require_causal(layer: HeadsOfLayer, mask: CausalMask | Tensor | None, rule: dict[str, Any]) -> CausalMask:
    """Return the mask. Raise ValueError if static heads or a calibration cannot follow it or the rule of the scores."""
    reason = next((what for name, what in _UNKNOWN_RULES.items() if rule.get(name) is not None), None)
    if reason is None and not getattr(layer.module, "is_causal", True):
        reason = "attention in both directions"
    if reason is None and mask is None:
        reason = "attention without a mask, as with a paged cache"
    if reason is None and not isinstance(mask, CausalMask):
        reason = "a four-dimensional attention mask of the caller"
    if isinstance(mask, CausalMask) and reason is None:
        reason = mask.position_obstacle(rule.get("position_ids")) or mask.obstacle
        if reason is None:
            return mask
    raise ValueError(
        f"layer {layer.layer} ({type(layer.module).__name__}): static heads cannot follow this model or input: {reason}"
    )


def _hand_over(
    layer: HeadsOfLayer, query: Tensor, key: Tensor, mask: CausalMask, scale: float, softcap: float | None
) -> None:
    """Call the layer's capture function with the queries and keys of live heads, as a calibration asks."""
    if mask.padding_BJ is not None:
        raise ValueError("calibration needs sequences of equal length: leave padding out")
    assert layer.capture is not None
    group = layer.num_heads // key.shape[1]
    live = layer.live_heads
    window = mask.window if mask.window is not None and mask.window < mask.q_length else None
    layer.capture(
        layer.select(query, live).transpose(1, 2),
        key.transpose(1, 2),
        live,
        scale,
        tuple(head // group for head in live),
        window=window,
        softcap=softcap,
    )


def _is_plain_causal(layer: HeadsOfLayer, mask: CausalMask, rule: dict[str, Any], dropout: float) -> bool:
    """Return whether one operator can compute live and static heads: it supports causal attention over all keys."""
    return (
        isinstance(layer.mixer, CompactMixer)
        and mask.is_prefill
        and mask.q_length == mask.kv_length <= layer.mixer.T_fit
        and mask.visible_B1RJ is None
        and rule.get("softcap") is None
        and not dropout
    )


def _mixed(layer: HeadsOfLayer, query: Tensor, key: Tensor, value: Tensor, mask: CausalMask, scale: float) -> Tensor:
    """Compute live and static heads with one operator, (B, R, H, D)."""
    assert isinstance(layer.mixer, CompactMixer)
    live = layer.live_heads
    return mixed_attention(
        layer.select(query, live).transpose(1, 2) if live else None,
        key.transpose(1, 2) if live else None,
        value.transpose(1, 2),
        live_heads=live,
        static_heads=layer.static_heads,
        pattern=layer.mixer.pattern(mask.window, value.device),
        scale=scale,
    )


def _beside(
    layer: HeadsOfLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: CausalMask,
    dropout: float,
    scale: float,
    rule: dict[str, Any],
) -> Tensor:
    """Compute live heads with the model's own attention and static heads with their patterns, (B, R, H, D)."""
    live, static = layer.live_heads, layer.static_heads
    assert layer.mixer is not None
    parts = []
    if live:
        alone = _LiveHeads(num_key_value_groups=1, training=layer.module.training, is_causal=True, source=layer.module)
        q, k, v = (layer.select(x, live) for x in (query, key, value))
        parts.append(ordinary_attention(alone, q, k, v, mask, dropout, scale, rule))
    parts.append(mix_static(layer.mixer, layer.select(value, static).transpose(1, 2), mask))
    return torch.cat(parts, dim=2).index_select(2, layer.natural_order(value.device))


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, causal_mask)
