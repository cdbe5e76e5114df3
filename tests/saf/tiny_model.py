"""Blocks of attention alone, with the parts that scores and compensation watch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saf_titan.ops.attention_stats import attention_probs
from saf_titan.saf.calibrate.capture import CaptureFn

B, T, H, D, C = 3, 20, 3, 4, 12


class QKV(nn.Module):
    def __init__(self, num_kv_heads: int = H) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(C, heads * D, bias=False) for heads in (H, num_kv_heads, num_kv_heads))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x).unflatten(-1, (-1, D)) for linear in (self.wq, self.wk, self.wv))


class InnerAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
        return torch.einsum("bhij,bjhd->bihd", attention_probs(q, k).float(), v)


class Attention(nn.Module):
    capture: CaptureFn | None = None

    def __init__(self, num_kv_heads: int = H) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = H, num_kv_heads
        self.live_heads = self.output_heads = tuple(range(H))
        self.qkv_linear = QKV(num_kv_heads)
        self.inner_attention = InnerAttention()
        self.wo = nn.Linear(H * D, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_linear(x)
        if self.capture:
            kv_heads = tuple(head * self.num_kv_heads // H for head in range(H))
            self.capture(q, k, tuple(range(H)), None, kv_heads)
        return self.wo(self.inner_attention(q, k, v).flatten(2))


class Block(nn.Module):
    def __init__(self, num_kv_heads: int = H) -> None:
        super().__init__()
        self.attention = Attention(num_kv_heads)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)
