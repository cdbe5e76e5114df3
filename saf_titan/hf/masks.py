"""Which keys a query sees, in the form that attention with static heads needs: positions and padding, not a matrix.

transformers calls `causal_mask` once a forward for each kind of layer and hands the result to every layer of the kind
unread, as it does with the block masks of flex attention.

Legend: B sequences, R queries of this forward, J keys (those in the cache included).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask


class CausalMask:
    """The mask of one forward; the matrix, where it is needed, is made once and shared by the layers."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """arguments: those of `transformers.masking_utils.sdpa_mask`."""
        self.q_length: int = arguments["q_length"]
        self.kv_length: int = arguments["kv_length"]
        self.q_offset = int(arguments.get("q_offset", 0))
        """Position of the first query."""
        self.kv_offset = int(arguments.get("kv_offset", 0))
        """Position of the first key; above 0 where a cache has dropped keys that left the window."""
        self.window: int | None = arguments.get("local_size")
        """How many of the latest keys a query sees, its own included; None for all."""
        # a cache of fixed size gives its own counter as an offset, and counts on before the matrix is made
        self._arguments = arguments | {"q_offset": self.q_offset, "kv_offset": self.kv_offset}

    @property
    def is_prefill(self) -> bool:
        """The queries are those of the whole sequence so far, and begin with it."""
        return self.q_offset == self.kv_offset == 0

    @cached_property
    def visible_B1RJ(self) -> Tensor | None:
        """True where a query sees a key; None for plain causal attention, or a last query that sees all keys."""
        mask: Tensor | None = sdpa_mask(**self._arguments)
        return mask

    @cached_property
    def all_visible_B1RJ(self) -> Tensor:
        """`visible_B1RJ` as a matrix in every case."""
        mask: Tensor | None = sdpa_mask(**self._arguments | {"allow_is_causal_skip": False})
        assert mask is not None
        return mask

    @cached_property
    def pads_B(self) -> Tensor | None:
        """The number of padding tokens at the left of each sequence, on the CPU; None if there are none."""
        padding_BJ = self.padding_BJ
        if padding_BJ is None:
            return None
        pads_B = padding_BJ.long().cumprod(1).sum(1)
        return pads_B if pads_B.any() else None

    @cached_property
    def obstacle(self) -> str | None:
        """What of this mask a static head cannot follow; None if it can."""
        if (padding_BJ := self.padding_BJ) is not None:
            # text begins at most once in a row: padding, text, padding
            text_BJ = torch.nn.functional.pad(padding_BJ.logical_not().long(), (1, 0))
            if ((text_BJ.diff(dim=1) == 1).sum(1) > 1).any():
                return "the attention mask hides tokens in the middle of a sequence"
        if self.kv_offset > 0 and self.window is None:
            return "the cache has dropped early keys of a layer without a sliding window"
        if self.window is None and self._arguments["mask_function"] is causal_mask_function:
            return None
        plain: Tensor | None = sdpa_mask(**self._arguments | {"attention_mask": None, "allow_is_causal_skip": False})
        assert plain is not None
        places_R = torch.arange(self.q_length, device=plain.device) + self.q_offset
        lag_RJ = places_R[:, None] - (torch.arange(self.kv_length, device=plain.device) + self.kv_offset)
        expected_RJ = (lag_RJ >= 0) & (lag_RJ < (self.window or self.q_offset + self.q_length))
        if not torch.equal(plain, expected_RJ.expand_as(plain)):
            return (
                "the model packs sequences or attends in blocks or both ways (its mask is not that of one causal text)"
            )
        return None

    @cached_property
    def padding_BJ(self) -> Tensor | None:
        """True for padding among the tokens so far, on the CPU; None without padding."""
        mask_BJ: Tensor | None = self._arguments.get("attention_mask")
        if mask_BJ is None or bool(mask_BJ.all()):
            return None
        return mask_BJ[:, : self.q_offset + self.q_length].logical_not().cpu()


def causal_mask(**arguments: Any) -> CausalMask:
    """What transformers asks for a mask of our attention; the arguments are those of `sdpa_mask`."""
    return CausalMask(arguments)
