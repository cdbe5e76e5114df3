"""A stack of attention layers that only make queries and keys: enough of a model to calibrate."""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.saf.calibrate.capture import CaptureFn

NUM_LAYERS, NUM_HEADS, HEAD_DIM, SEQ_LEN = 3, 4, 8, 24


class FakeAttention:
    """Queries and keys of a sequence are a fixed random map of its tokens, plus a part shared by all sequences."""

    def __init__(self, layer: int, live: tuple[int, ...] = tuple(range(NUM_HEADS)), num_kv_heads: int = NUM_HEADS):
        generator = torch.Generator().manual_seed(layer)
        self.num_heads = NUM_HEADS
        self.live = live
        self.num_kv_heads = num_kv_heads
        self.capture: CaptureFn | None = None
        self.calls = 0
        self.q_VHD = torch.randn(100, NUM_HEADS, HEAD_DIM, generator=generator)
        self.k_VHD = torch.randn(100, num_kv_heads, HEAD_DIM, generator=generator)
        self.shared_THD = (1 + torch.arange(NUM_HEADS))[:, None] * torch.randn(
            SEQ_LEN, NUM_HEADS, HEAD_DIM, generator=generator
        )

    def queries_and_keys(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_VHD[tokens_BT] + self.shared_THD, self.k_VHD[tokens_BT]

    def __call__(self, tokens_BT: Tensor) -> None:
        self.calls += 1
        if self.capture and self.live:
            q, k = self.queries_and_keys(tokens_BT)
            group = NUM_HEADS // self.num_kv_heads
            self.capture(q[:, :, list(self.live)], k, self.live, None, tuple(h // group for h in self.live))


class FakeModel:
    def __init__(self, attentions: list[FakeAttention] | None = None) -> None:
        self.attentions = attentions or [FakeAttention(layer) for layer in range(NUM_LAYERS)]

    def __call__(self, tokens_BT: Tensor) -> None:
        for attention in self.attentions:
            attention(tokens_BT)


def sequences(num: int) -> Tensor:
    return torch.randint(100, (num, SEQ_LEN), generator=torch.Generator().manual_seed(0))


def uneven_model() -> FakeModel:
    """One static layer and uneven live heads, so that ranks own different numbers of heads."""
    return FakeModel([FakeAttention(0), FakeAttention(1, live=()), FakeAttention(2, live=(0, 1, 3), num_kv_heads=2)])
