"""The GPT feed-forward layer: two linear maps around a GELU."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common import Linear
from torchtitan.protocols.module import Module


class GeluMLP(Module):
    """``w2(gelu(w1(x)))``; x is [B, T, C]."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        w1: Linear.Config
        w2: Linear.Config
        approximate: str = "none"
        """As in torch: "none" for the erf form, "tanh" for the approximation of GPT-2."""

    def __init__(self, config: Config):
        super().__init__()
        self.w1 = config.w1.build()
        self.w2 = config.w2.build()
        self.approximate = config.approximate

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x_BTC), approximate=self.approximate))
