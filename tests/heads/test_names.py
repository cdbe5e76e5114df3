"""How heads are written and read."""

import pytest

from saf_titan.heads.names import head_name, parse_heads


def test_names_read_back() -> None:
    heads = [(0, 3), (12, 1), (2, 0)]
    assert parse_heads(",".join(head_name(*head) for head in heads)) == heads


def test_heads_are_read_by_name() -> None:
    assert parse_heads("L0H3, L12H1") == [(0, 3), (12, 1)]
    assert parse_heads("") == []
    with pytest.raises(ValueError, match="'H1' is not a head"):
        parse_heads("L0H3,H1")
