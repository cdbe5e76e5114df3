"""What static heads no longer use, with and without grouped queries."""

import itertools

import pytest

from saf_titan.heads.kv_groups import unread_kv_heads, unused_heads


def test_one_kv_head_for_each_query_head() -> None:
    assert unused_heads([2, 0], num_heads=4, num_kv_heads=4, frees_values=False) == ((0, 2), (0, 2), (), ())
    assert unused_heads([2, 0], num_heads=4, num_kv_heads=4, frees_values=True) == ((0, 2), (0, 2), (0, 2), (0, 2))


def test_a_kv_head_goes_with_its_whole_group() -> None:
    unused = unused_heads([0, 1, 2], num_heads=4, num_kv_heads=2, frees_values=True)
    assert unused == ((0, 1, 2), (0,), (0,), (0, 1, 2))
    assert unused_heads([0, 2], num_heads=4, num_kv_heads=2, frees_values=True) == ((0, 2), (), (), (0, 2))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_a_kv_head_is_unread_exactly_if_no_live_head_reads_it(num_kv_heads: int) -> None:
    group = 6 // num_kv_heads
    for count in range(7):
        for static in itertools.combinations(range(6), count):
            read = {head // group for head in range(6) if head not in static}
            expected = tuple(kv for kv in range(num_kv_heads) if kv not in read)
            assert unread_kv_heads(static, num_heads=6, num_kv_heads=num_kv_heads) == expected
