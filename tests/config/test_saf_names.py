"""The names that [saf] takes are names that the method knows."""

from collections.abc import Sequence
from typing import get_args, get_type_hints

import pytest
import torch

from saf_titan.config.own_sections import SafSection
from saf_titan.heads.counts import Rounding
from saf_titan.heads.names import Head
from saf_titan.run.measurement import OUTPUT_SELECTORS
from saf_titan.saf.fit.contents import CONTENTS
from saf_titan.saf.fit.dense import DensePatterns
from saf_titan.saf.plan.decide import make_plan
from tests.report.runs import calibration

NAMES = {key: get_args(hint) for key, hint in get_type_hints(SafSection).items()}


def test_contents_and_rounding_are_all_there() -> None:
    assert NAMES["content"] == CONTENTS
    assert NAMES["rounding"] == get_args(Rounding)


def diagonal_patterns(heads: Sequence[Head], content: str) -> DensePatterns:
    """In place of a model."""
    T = calibration().seq_len
    return DensePatterns(torch.eye(T).repeat(len(heads), 1, 1), torch.zeros(len(heads)))


@pytest.mark.parametrize("selector", NAMES["selector"])
@pytest.mark.parametrize("content", NAMES["content"])
def test_every_selector_and_content_gives_a_plan(selector: str, content: str) -> None:
    # scores that calibration alone does not give
    measured = {name: calibration().variance_LH for name in ("qk_gradient", "gate_taylor", *OUTPUT_SELECTORS)}
    plan = make_plan(
        calibration().with_scores(**measured),
        step=1,
        rate=0.25,
        selector=selector,
        content=content,
        max_fit_kl=10.0,
        heads=[(0, 0), (1, 1)],
        dense=diagonal_patterns,
    )
    assert len(plan.heads) == 2
    assert (plan.selector, plan.content) == (selector, content)
