"""torchtitan's selective activation checkpointing, with static mixing among the operations that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.distributed.activation_checkpoint import SelectiveAC

import saf_titan.ops  # noqa: F401  registers the custom op


class SelectiveACWithStaticMix(SelectiveAC):
    """Keeps the output of ``saf_titan::static_mix``: as dear to recompute as the attention it replaces."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        return super().get_save_ops() | {torch.ops.saf_titan.static_mix.default}
