"""torchtitan's Decoder, with a count of floating-point operations that takes static heads into account."""

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
            """Call torchtitan's method, then size RoPE for the run's longest sequence, perhaps one of validation."""
            # super() without arguments fails in a dataclass with slots, because slots make a new class
            Decoder.Config.update_from_config(self, config=config, **others)
            run = getattr(config, "run", None)
            if run is None or run.max_seq_len == run.training.seq_len:
                return
            for layer in self.layers:
                layer.attention.rope = replace(layer.attention.rope, max_seq_len=run.max_seq_len)
