"""An identity in place of RoPE, for decoders with learned absolute positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torchtitan.protocols.module import Module


class NoRope(Module):
    """Returns queries and keys as they are.

    torchtitan's ``Decoder.Config`` reads ``attention.rope.max_seq_len`` and replaces it by the training length. With
    this class it does so for learned positions too, without a change.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        max_seq_len: int

    def __init__(self, config: Config):
        super().__init__()

    def forward(self, q_BTHD: Tensor, k_BTHD: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return q_BTHD, k_BTHD
