"""Static heads by definition: the eager attention of transformers in float64, some heads replaced by patterns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from saf_titan.saf.plan.plan import StaticPlan
from tests.hf.tiny import H, stock_model

NAME = "naive_static_heads"
_PLANS: list[StaticPlan] = []


def _attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **rule: Any) -> tuple[Tensor, Tensor]:
    eager = sys.modules[type(module).__module__].eager_attention_forward
    _, p_BHTT = eager(module, q, k, v, mask, **rule)
    p_BHTT = p_BHTT.clone()
    visible_TT = mask[0, 0] == 0
    T = len(visible_TT)
    v_BHTD = v.repeat_interleave(H // v.shape[1], dim=1)
    for head in _PLANS[-1].layers().get(module.layer_idx, ()):
        weights_TT = head.pattern.rows(0, T).masked_fill(~visible_TT, 0.0)
        p_BHTT[:, head.head] = weights_TT / weights_TT.sum(1, keepdim=True).clamp(min=1e-300)
    return (p_BHTT @ v_BHTD).transpose(1, 2).contiguous(), p_BHTT


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def plan_in_use(plan: StaticPlan) -> Iterator[None]:
    _PLANS.append(plan)
    try:
        yield
    finally:
        _PLANS.pop()


@torch.no_grad()
def reference_logits(model_type: str, plan: StaticPlan, tokens_BT: Tensor, **changes: Any) -> Tensor:
    """float64 logits of the stock model with random weights, whose planned heads attend by their patterns."""
    model = stock_model(model_type, NAME, **changes).double()
    with plan_in_use(plan):
        logits: Tensor = model(tokens_BT).logits
    return logits
