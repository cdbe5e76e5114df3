"""Ranks that come to different plans are stopped, every one of them."""

from pathlib import Path

from saf_titan.saf.plan.agreement import require_agreement
from tests.saf.plan.test_plan import EXAMPLE


def test_one_process_agrees_with_itself() -> None:
    require_agreement(EXAMPLE)


def test_four_ranks(four_ranks: Path) -> None:
    agreed, disagreed = ([(four_ranks / f"{name}.rank{r}").read_text() for r in range(4)] for name in NAMES)
    assert agreed == [""] * 4
    assert all(text.startswith("ranks derived different plans") for text in disagreed)


NAMES = ("agreed", "disagreed")
