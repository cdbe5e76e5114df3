"""Numbers as a reader sees them."""

import math

import pytest

from saf_titan.report.format import count, loss_text, number_of, perplexity_text, seconds_text, short


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (7.25, "7.25"),
        (42.52, "42.5"),
        (812.4, "812"),
        (999.7, "1K"),
        (22_090, "22.1K"),
        (999_950, "1M"),
        (1.2e6, "1.2M"),
        (3e9, "3B"),
        (2.5e12, "2.5T"),
        (1e15, "1.0e+15"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_short_numbers(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (3.75, "perplexity 42.52"),
        (7.46, "perplexity 1,737"),
        (11.0, "perplexity 59,874"),
        (15.0, "perplexity 3.27M"),
        (1e5, "perplexity inf"),
        (math.nan, "perplexity nan"),
    ],
)
def test_perplexities(loss: float, text: str) -> None:
    assert perplexity_text(loss) == text
    assert loss_text(loss) == f"{loss:.4f} ({text})"


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "0.0123 s"), (1.875, "1.88 s"), (90, "90 s"), (3600, "60 min")])
def test_times(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_plurals() -> None:
    assert count(1, "head") == "1 head"
    assert count(1200, "head") == "1,200 heads"
    assert number_of(0, "line is", "lines are") == "0 lines are"
