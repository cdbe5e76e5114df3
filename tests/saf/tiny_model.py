"""Blocks of attention alone, with the parts that scores and compensation watch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saf_titan.ops.attention_stats import attention_probs
from saf_titan.saf.calibrate.capture import CaptureFn

B, T, H, D, C = 3, 20, 3, 4, 12


class QKV(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(C, H * D, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x).unflatten(-1, (H, D)) for linear in (self.wq, self.wk, self.wv))


class InnerAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", attention_probs(q, k).float(), v)


class Attention(nn.Module):
    capture: CaptureFn | None = None

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.live_heads = self.output_heads = tuple(range(H))
        self.qkv_linear = QKV()
        self.inner_attention = InnerAttention()
        self.wo = nn.Linear(H * D, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_linear(x)
        if self.capture:
            self.capture(q, k, tuple(range(H)), None)
        return self.wo(self.inner_attention(q, k, v).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)
