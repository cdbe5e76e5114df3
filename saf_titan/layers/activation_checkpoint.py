"""torchtitan's selective activation checkpointing, which here also saves the outputs of our attention operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.distributed.activation_checkpoint import SelectiveAC

from saf_titan.ops import SAVED_OPS


class SelectiveACWithStaticMix(SelectiveAC):
    """Saves the outputs of our operators: recomputing them would cost as much as the attention they replace."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        return super().get_save_ops() | set(SAVED_OPS)
