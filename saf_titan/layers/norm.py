"""LayerNorm without bias, as nanoGPT-style decoders use it; torchtitan's wrapper has no bias switch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.protocols.module import Module


class LayerNorm(nn.LayerNorm, Module):
    """``torch.nn.LayerNorm`` with a weight and no bias."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        normalized_shape: int
        eps: float = 1e-5

    def __init__(self, config: Config):
        super().__init__(config.normalized_shape, eps=config.eps, bias=False)
