"""The mask of a forward as an object with positions and padding, because static heads cannot use a matrix.

transformers calls `causal_mask` once per forward for each kind of layer (full attention, sliding window). It passes
the result to every layer of that kind without reading it, as it does with the block masks of flex attention.

Legend: B sequences, R queries of this forward, J keys (including those in the cache).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask

_NO_SKIP = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
"""Arguments of `sdpa_mask` with which it returns a matrix in every case."""


class CausalMask:
    """The causal mask of one forward. If a layer needs the matrix, it is made once and shared by all layers."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """arguments: those of `transformers.masking_utils.sdpa_mask`."""
        self.q_length: int = arguments["q_length"]
        self.kv_length: int = arguments["kv_length"]
        self.q_offset = int(arguments.get("q_offset", 0))
        """Position of the first query."""
        self.kv_offset = int(arguments.get("kv_offset", 0))
        """Position of the first key; above 0 if the cache has dropped keys that are outside the sliding window."""
        self.window: int | None = arguments.get("local_size")
        """Size of the sliding window: number of newest keys that a query sees, including its own; None for all keys."""
        # A cache of fixed size passes its own counter as the offset and increases it before the matrix is made, so the
        # offsets are stored as numbers.
        self._arguments = arguments | {"q_offset": self.q_offset, "kv_offset": self.kv_offset}
        self._checked_positions: tuple[Tensor, str | None] | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether the queries of this forward are those of all tokens so far, with none before them in the cache."""
        return self.q_offset == self.kv_offset == 0

    @cached_property
    def visible_B1RJ(self) -> Tensor | None:
        """Return a matrix that is True where a query sees a key, shape (B, 1, R, J).

        None stands for causal attention over all tokens, and for a single query that sees all keys.
        """
        mask: Tensor | None = sdpa_mask(**self._arguments)
        return mask

    @cached_property
    def all_visible_B1RJ(self) -> Tensor:
        """Return `visible_B1RJ` as a matrix in every case."""
        mask: Tensor | None = sdpa_mask(**self._arguments | _NO_SKIP)
        assert mask is not None
        return mask

    @cached_property
    def pads_B(self) -> Tensor | None:
        """Return the number of padding tokens at the left of each sequence, int64 (B,) on the CPU; None if all 0."""
        padding_BJ = self.padding_BJ
        if padding_BJ is None:
            return None
        pads_B = padding_BJ.long().cumprod(1).sum(1)
        return pads_B if pads_B.any() else None

    @cached_property
    def obstacle(self) -> str | None:
        """Return why static heads cannot follow this mask, as a clause; None if they can."""
        mask_BJ: Tensor | None = self._arguments.get("attention_mask")
        num_tokens = self.q_offset + self.q_length
        if mask_BJ is not None and mask_BJ.shape[1] < num_tokens:
            return (
                f"the attention mask has {mask_BJ.shape[1]} columns for {num_tokens} tokens; it needs one for each "
                "token, those in the cache included"
            )
        if (padding_BJ := self.padding_BJ) is not None:
            # a row may have padding at both ends, so its text begins at most once
            text_BJ = torch.nn.functional.pad(padding_BJ.logical_not().long(), (1, 0))
            if ((text_BJ.diff(dim=1) == 1).sum(1) > 1).any():
                return "the attention mask hides tokens in the middle of a sequence"
        if self.kv_offset > 0 and self.window is None:
            return "the cache has dropped early keys of a layer without a sliding window"
        if self.window is None and self._arguments["mask_function"] is causal_mask_function:
            return None
        plain: Tensor | None = sdpa_mask(**self._arguments | _NO_SKIP | {"attention_mask": None})
        assert plain is not None
        places_R = torch.arange(self.q_length, device=plain.device) + self.q_offset
        lag_RJ = places_R[:, None] - (torch.arange(self.kv_length, device=plain.device) + self.kv_offset)
        expected_RJ = (lag_RJ >= 0) & (lag_RJ < (self.window or self.q_offset + self.q_length))
        if not torch.equal(plain, expected_RJ.expand_as(plain)):
            return (
                "the model packs sequences or attends in blocks or both ways (its mask is not that of one causal text)"
            )
        return None

    def position_obstacle(self, positions: Tensor | None) -> str | None:
        """Return why static heads cannot follow the position ids of this forward, as a clause; None if they can.

        A pattern belongs to one text that begins at its first token. The position ids must count the tokens of that
        text, with or without the padding at its left. Other ids, for example of several texts packed into a row, pass
        transformers without an error wherever it makes a plain causal mask: with a cache, and with a padding mask.

        positions: int64 (B, R), or (1, R) for all sequences alike; the same tensor is compared only once.
        """
        if positions is None:
            return None
        if self._checked_positions is None or self._checked_positions[0] is not positions:
            self._checked_positions = positions, self._compare_positions(positions.cpu())
        return self._checked_positions[1]

    def _compare_positions(self, positions_BR: Tensor) -> str | None:
        if positions_BR.ndim != 2:
            return f"position_ids have {positions_BR.ndim} dimensions, and not one row for each sequence"
        place_R = torch.arange(self.q_length) + self.q_offset
        pads_B = torch.zeros(1, dtype=torch.int64) if self.pads_B is None else self.pads_B
        is_padding_BR = torch.tensor(False) if self.padding_BJ is None else self.padding_BJ[:, self.q_offset :]
        fits_B = torch.tensor(False)
        for first_B in (torch.zeros_like(pads_B), pads_B):
            fits_B = fits_B | ((positions_BR == place_R - first_B[:, None]) | is_padding_BR).all(1)
        if fits_B.all():
            return None
        row = int(fits_B.logical_not().nonzero()[0])
        found = positions_BR.expand(len(fits_B), -1)[row].tolist()
        shown = ", ".join(map(str, found[:12])) + (", ..." if len(found) > 12 else "")
        return (
            f"position_ids of row {row} are {shown}, which do not count the tokens of one text from {self.q_offset}: "
            "the row packs sequences or skips positions; give each sequence a row of its own, without position_ids"
        )

    @cached_property
    def padding_BJ(self) -> Tensor | None:
        """Return a matrix that is True for padding, bool (B, tokens so far) on the CPU; None without padding."""
        mask_BJ: Tensor | None = self._arguments.get("attention_mask")
        if mask_BJ is None or bool(mask_BJ.all()):
            return None
        return mask_BJ[:, : self.q_offset + self.q_length].logical_not().cpu()


def causal_mask(**arguments: Any) -> CausalMask:
    """Return the mask of a forward; transformers calls this with the arguments of its `sdpa_mask`."""
    return CausalMask(arguments)
