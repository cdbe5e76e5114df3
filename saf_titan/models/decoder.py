"""torchtitan's Decoder, whose count of operations follows its static heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.models.common import Decoder

from saf_titan.models.flops import training_flops_per_token


class FreezableDecoder(Decoder):
    """A decoder whose attention layers are :class:`saf_titan.layers.attention.SAFAttention`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Decoder.Config):
        def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
            num_parameters = sum(parameter.numel() for parameter in model.parameters())
            return num_parameters, training_flops_per_token(model, seq_len)
