"""How many heads a rate means."""

import pytest

from saf_titan.heads.counts import head_count


@pytest.mark.parametrize(
    ("total", "rate", "rounding", "expected"),
    [
        (144, 0.25, "floor", 36),
        (144, 0.1, "floor", 14),
        (144, 0.1, "round", 14),
        (100, 0.29, "floor", 29),  # int(0.29 * 100) is 28
        (10, 0.25, "round", 3),
        (10, 0.25, "floor", 2),
        (32, 1, "round", 32),
        (32, 0, "round", 0),
    ],
)
def test_head_count(total: int, rate: float, rounding: str, expected: int) -> None:
    assert head_count(total, rate, rounding) == expected  # type: ignore[arg-type]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 25"):
        head_count(10, 25)
    with pytest.raises(ValueError, match="unknown rounding 'ceil'"):
        head_count(10, 0.5, "ceil")  # type: ignore[arg-type]
