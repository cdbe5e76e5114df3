"""torchtitan's Decoder, whose count of operations follows its static heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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

        def update_from_config(self, *, config: Any, **others: Any) -> None:
            """torchtitan's, with rotations for the longest sequence of a run, which may be one to validate on."""
            # the zero-argument form of super() does not know a dataclass with slots
            Decoder.Config.update_from_config(self, config=config, **others)
            run = getattr(config, "run", None)
            if run is None or run.max_seq_len == run.training.seq_len:
                return
            for layer in self.layers:
                layer.attention.rope = replace(layer.attention.rope, max_seq_len=run.max_seq_len)
