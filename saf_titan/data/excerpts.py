"""Cuts excerpts out of a stream of tokens: sequences of one length that do not overlap, for calibration and analysis.

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
    """Sequences of one stream of tokens, each after the ids that every text of the model begins with."""

    tokens_NT: Tensor
    """The sequences, int64 [N, T], including the opening ids."""
    positions: tuple[int, ...]
    """Position in the stream, in tokens, at which each sequence begins."""
    source: str
    """Name of the stream, for messages."""
    opening: tuple[int, ...] = ()
    """Ids that every sequence begins with, such as <bos>: a model that was trained with <bos> attends differently
    without it."""


def cut_excerpts(
    read: Callable[[int, int], Any],
    num_tokens: int,
    num_sequences: int | None,
    length: int,
    *,
    source: str,
    opening: tuple[int, ...] = (),
) -> Excerpts:
    """Cut sequences that do not overlap out of a stream.

    Args:
        read: returns the ids at positions start <= i < stop of the stream.
        num_tokens: length of the stream.
        num_sequences: number of sequences, which are spread evenly over the stream; None for as many as there are.
        length: tokens of a sequence, including the opening ids.
        source: name of the stream, for messages.
        opening: ids that every sequence begins with.

    Raises ValueError if the stream is too short, or if the opening leaves no room for other tokens.
    """
    fresh = length - len(opening)
    if fresh < 1:
        raise ValueError(f"--length {length}, but {len(opening)} tokens come before every text of this model")
    possible = num_tokens // fresh
    if possible < (num_sequences or 1):
        windows = "a window" if (num_sequences or 1) == 1 else f"{num_sequences:,} windows"
        remedy = "lower --length" if windows == "a window" else "lower --sequences or --length"
        raise ValueError(
            f"{source} has {num_tokens:,} tokens, too few for {windows} of {length}: give a longer text, or {remedy}"
        )
    chosen = possible if num_sequences is None else num_sequences
    starts = [int(n * possible / chosen) * fresh for n in range(chosen)]
    begin = np.asarray(opening, dtype=np.int64)
    rows = [np.concatenate([begin, read(start, start + fresh)]) for start in starts]
    return Excerpts(torch.from_numpy(np.stack(rows)), tuple(starts), source, opening)
