"""The GPT feed-forward layer: two linear maps around an exact GELU."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common import Linear
from torchtitan.protocols.module import Module


class GeluMLP(Module):
    """``w2(gelu(w1(x)))`` with the erf GELU; x is [B, T, C]."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        w1: Linear.Config
        w2: Linear.Config

    def __init__(self, config: Config):
        super().__init__()
        self.w1 = config.w1.build()
        self.w2 = config.w2.build()

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x_BTC)))
