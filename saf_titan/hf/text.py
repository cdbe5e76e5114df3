"""Cut windows of tokens from a text or a folder of shards, and limit their length, for calibration and for the loss."""

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
    """Return the largest number of tokens that a model can read at once; None for no limit.

    The positions of the model and the length that its static heads are fitted to are limits.
    """
    return min((limit for limit, _ in _limits(model)), default=None)


def require_length(model: Any, num_tokens: int, *, remedy: str) -> None:
    """Raise ValueError if a text of `num_tokens` is longer than a model can read.

    remedy: what to do about it, as the end of the message.
    """
    limit, reason = min(_limits(model), default=(num_tokens, ""))
    if num_tokens > limit:
        raise ValueError(f"{num_tokens} tokens are more than the model is defined for: {reason}; {remedy}")


def _limits(model: Any) -> list[tuple[int, str]]:
    """Return each limit of the length of a text, in tokens, with its reason as a clause."""
    limits = (
        # None without static heads, and if all of them are pruned
        (model.fitted_length, "its static heads are fitted to sequences of {} tokens"),
        (getattr(model.config, "max_position_embeddings", None), "it has positions for {} tokens"),
    )
    return [(limit, reason.format(limit)) for limit, reason in limits if limit is not None]


def require_known_ids(ids: Iterable[int], vocab_size: int, *, model: str | Path) -> None:
    """Raise ValueError if the tokenizer of a model has given an id for which the model has no embedding."""
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise ValueError(
            f"the tokenizer of {model} gives the id {largest}, and the model knows {vocab_size}: it is the tokenizer "
            "of another model; copy the model's own tokenizer files there"
        )


def text_windows(
    path: Path, model: str | Path, num_windows: int | None, length: int, *, vocab_size: int | None = None
) -> Excerpts:
    """Cut windows from a text file that is read with the tokenizer of a model.

    Each window begins with the ids that the tokenizer puts before every text; see `opening_ids`.

    Args:
        path: the text file.
        model: the folder or .gguf file of the model.
        num_windows: number of windows, spread evenly over the text; None for all.
        length: tokens per window, including those that it begins with.
        vocab_size: number of ids that the model knows; None to skip this check.

    Raises ValueError if the file is not UTF-8 text or is too short, the model has no tokenizer, or the tokenizer gives
    ids that the model does not know.
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
    """Cut windows from the held-out split of a folder that `rust_data.tokenize` has written.

    Args:
        folder: the folder of shards.
        num_windows: number of windows, spread evenly over the split; None for all.
        length: tokens per window, including those of `opening`.
        vocab_size: number of ids that the model knows.
        opening: ids that each window begins with; see `opening_ids`.

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
