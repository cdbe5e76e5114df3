"""Token windows of a text or of a folder of shards, for calibration and for the loss.

Legend: N windows, T time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from saf_titan.data.corpus import open_corpus
from saf_titan.data.excerpts import Excerpts, cut_excerpts
from saf_titan.fields.places import read_utf8
from saf_titan.hf.tokenizer_files import opening_ids, read_tokenizer


def longest_text(model: Any) -> int | None:
    """The most tokens that a model can read: its positions, or the length that its static heads are fitted to.

    None where neither is limited.
    """
    return min((limit for limit, _ in _limits(model)), default=None)


def require_length(model: Any, num_tokens: int, *, remedy: str) -> None:
    """Raise ValueError, which says the limit and ends with the remedy, beyond the limit of a model."""
    limit, reason = min(_limits(model), default=(num_tokens, ""))
    if num_tokens > limit:
        raise ValueError(f"{num_tokens} tokens are more than the model is defined for: {reason}; {remedy}")


def _limits(model: Any) -> list[tuple[int, str]]:
    """Each limit of the length of a text, in tokens, with its reason."""
    limits = (
        # None while static heads are pruned: nothing has a length there
        (model.fitted_length, "its static heads are fitted to sequences of {} tokens"),
        (getattr(model.config, "max_position_embeddings", None), "it has positions for {} tokens"),
    )
    return [(limit, reason.format(limit)) for limit, reason in limits if limit is not None]


def require_known_ids(ids: Iterable[int], vocab_size: int, *, model: str | Path) -> None:
    """Raise ValueError if a tokenizer gave ids that its model has no embedding for."""
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise ValueError(
            f"the tokenizer of {model} gives the id {largest}, and the model knows {vocab_size}: it is the tokenizer "
            "of another model; copy the model's own tokenizer files there"
        )


def text_windows(
    path: Path, model: str | Path, num_windows: int | None, length: int, *, vocab_size: int | None = None
) -> Excerpts:
    """Windows of a text file by the tokenizer that lies beside a model, which also says how a text begins.

    num_windows: that many, spread evenly over the text; None: all of them.
    length: tokens of a window, those that it begins with included.
    vocab_size: ids that the model knows; None if they need not be looked at.
    Raises ValueError for a file that is no UTF-8 text or too short, for a model without a tokenizer, and for a
    tokenizer with ids that the model does not know.
    """
    text = read_utf8(path)
    tokenizer = read_tokenizer(model)
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    if vocab_size is not None:
        require_known_ids([*opening_ids(tokenizer), int(ids.max(initial=0))], vocab_size, model=model)
    return cut_excerpts(
        lambda start, stop: ids[start:stop],
        len(ids),
        num_windows,
        length,
        source=str(path),
        opening=opening_ids(tokenizer),
    )


def shard_windows(
    folder: Path, num_windows: int | None, length: int, *, vocab_size: int, opening: tuple[int, ...] = ()
) -> Excerpts:
    """Windows of the held-out split of a folder that `rust_data.tokenize` wrote.

    opening: the ids that each window begins with, which count for its length; see `opening_ids`.
    Raises ValueError if the shards have ids that the model does not know, or are too short.
    """
    stream = open_corpus(folder, splits=("val",)).stream("val")
    if stream.vocab_size > vocab_size:
        raise ValueError(
            f"{folder} has a vocabulary of {stream.vocab_size}, and the model one of {vocab_size}: tokenize with the "
            "tokenizer of the model"
        )
    source = f"the split val of {folder}"
    return cut_excerpts(stream.read, len(stream), num_windows, length, source=source, opening=opening)
