"""LayerNorm with or without bias, as nanoGPT-style decoders use it; torchtitan's wrapper has no bias switch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.protocols.module import Module


class LayerNorm(nn.LayerNorm, Module):
    """``torch.nn.LayerNorm`` with a weight, and a bias if asked for."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        normalized_shape: int
        eps: float = 1e-5
        bias: bool = False

    def __init__(self, config: Config):
        super().__init__(config.normalized_shape, eps=config.eps, bias=config.bias)
