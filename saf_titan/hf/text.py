"""Token windows of a text or of a folder of shards, for calibration and for the loss.

Legend: N windows, T time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saf_titan.data.corpus import open_corpus
from saf_titan.hf.tokenizer_files import read_tokenizer


@dataclass(frozen=True)
class Windows:
    """Windows of one stream of tokens that do not overlap."""

    tokens_NT: Tensor
    """int64."""
    positions: tuple[int, ...]
    """Where each window begins in the stream, in tokens."""
    source: str


def text_windows(path: Path, model: str | Path, num_windows: int | None, length: int) -> Windows:
    """Windows of a text file by the tokenizer that lies beside a model.

    num_windows: that many, spread evenly over the text; None: all of them.
    Raises ValueError for a file that is no UTF-8 text or too short, and for a model without a tokenizer.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    ids = np.asarray(read_tokenizer(model)(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    starts = _starts(len(ids), num_windows, length, str(path))
    return _windows(lambda start: ids[start : start + length], starts, str(path))


def shard_windows(folder: Path, num_windows: int | None, length: int, *, vocab_size: int) -> Windows:
    """Windows of the held-out split of a folder that `rust_data.tokenize` wrote.

    Raises ValueError if the shards have ids that the model does not know, or are too short.
    """
    stream = open_corpus(folder, splits=("val",)).stream("val")
    if stream.vocab_size > vocab_size:
        raise ValueError(
            f"{folder} has a vocabulary of {stream.vocab_size}, and the model one of {vocab_size}: tokenize with the "
            "tokenizer of the model"
        )
    starts = _starts(len(stream), num_windows, length, f"the split val of {folder}")
    return _windows(lambda start: stream.read(start, start + length), starts, str(folder))


def _windows(read: Any, starts: list[int], source: str) -> Windows:
    tokens_NT = torch.from_numpy(np.stack([read(start) for start in starts]))
    return Windows(tokens_NT, tuple(starts), source)


def _starts(num_tokens: int, num_windows: int | None, length: int, source: str) -> list[int]:
    possible = num_tokens // length
    if possible < (num_windows or 1):
        raise ValueError(
            f"{source} has {num_tokens:,} tokens, too few for {num_windows or 1} windows of {length}: give a longer "
            "text, or lower --sequences or --length"
        )
    chosen = possible if num_windows is None else num_windows
    return [int(n * possible / chosen) * length for n in range(chosen)]
