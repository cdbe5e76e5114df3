"""Excerpts of a stream of tokens: sequences of one length that do not overlap, for calibration, losses and analysis.

Legend: N excerpts, T time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Excerpts:
    """Sequences of one stream of tokens, each behind the ids that the model's texts begin with."""

    tokens_NT: Tensor
    """int64."""
    positions: tuple[int, ...]
    """Where each sequence begins in the stream, in tokens."""
    source: str
    opening: tuple[int, ...] = ()
    """The ids before every sequence: a model that was trained with <bos> before each text is another one without."""


def cut_excerpts(
    read: Callable[[int, int], Any],
    num_tokens: int,
    num_sequences: int | None,
    length: int,
    *,
    source: str,
    opening: tuple[int, ...] = (),
) -> Excerpts:
    """Cut sequences out of a stream.

    Args:
        read: gives the ids start <= i < stop of the stream.
        num_sequences: that many, spread evenly over the stream; None: all of them.
        length: tokens of a sequence, those that it begins with included.

    Raises ValueError for a stream that is too short.
    """
    fresh = length - len(opening)
    if fresh < 1:
        raise ValueError(f"--length {length}, but {len(opening)} tokens come before every text of this model")
    possible = num_tokens // fresh
    if possible < (num_sequences or 1):
        raise ValueError(
            f"{source} has {num_tokens:,} tokens, too few for {num_sequences or 1} windows of {length}: give a longer "
            "text, or lower --sequences or --length"
        )
    chosen = possible if num_sequences is None else num_sequences
    starts = [int(n * possible / chosen) * fresh for n in range(chosen)]
    begin = np.asarray(opening, dtype=np.int64)
    rows = [np.concatenate([begin, read(start, start + fresh)]) for start in starts]
    return Excerpts(torch.from_numpy(np.stack(rows)), tuple(starts), source, opening)
