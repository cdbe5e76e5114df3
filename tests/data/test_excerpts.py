"""Sequences cut out of a stream of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saf_titan.data.excerpts import cut_excerpts
from saf_titan.fields.places import read_utf8


def cut(num_tokens: int, num_sequences: int | None, length: int, **settings: tuple[int, ...]):
    ids = np.arange(100, 100 + num_tokens)
    return cut_excerpts(
        lambda start, stop: ids[start:stop], num_tokens, num_sequences, length, source="the text", **settings
    )


def test_sequences_are_spread_over_the_stream_and_do_not_overlap() -> None:
    found = cut(23, 3, 4)
    assert found.tokens_NT.tolist() == [[100, 101, 102, 103], [104, 105, 106, 107], [112, 113, 114, 115]]
    assert found.positions == (0, 4, 12)
    assert len(cut(23, None, 4).tokens_NT) == 5


def test_opening_ids_count_for_the_length() -> None:
    found = cut(6, 2, 4, opening=(1,))
    assert found.tokens_NT.tolist() == [[1, 100, 101, 102], [1, 103, 104, 105]]
    assert found.opening == (1,)


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="the text has 7 tokens, too few for 2 windows of 4"):
        cut(7, 2, 4)
    with pytest.raises(ValueError, match="1 tokens come before every text"):
        cut(7, 1, 1, opening=(1,))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(.* at byte 3\)"):
        read_utf8(tmp_path / "x")
