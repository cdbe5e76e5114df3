"""Every selector and every content that the settings name makes a plan, and the registries serve help and guides.

Covers saf/select/registry.py, saf/select/selector.py.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from saf_titan.config import help_text
from saf_titan.fields.registry import Entry, markdown_table
from saf_titan.heads.names import Head
from saf_titan.saf.fit.dense import DensePatterns
from saf_titan.saf.fit.registry import CONTENTS
from saf_titan.saf.plan.settings import PlanSettings
from saf_titan.saf.select.registry import SELECTORS
from tests.report.runs import calibration
from tests.saf.plans import plan_of

GUIDE = Path(__file__).parents[3] / "docs" / "saf.md"


def diagonal_patterns(heads: Sequence[Head], content: str) -> DensePatterns:
    """In place of a model."""
    T = calibration().seq_len
    return DensePatterns(torch.eye(T).repeat(len(heads), 1, 1), torch.zeros(len(heads)))


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("content", CONTENTS)
def test_every_selector_and_content_gives_a_plan(selector: str, content: str) -> None:
    # scores that calibration alone does not give
    measured = {name: calibration().variance_LH for name, entry in SELECTORS.items() if entry.measure}
    plan = plan_of(
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 1.5}, "rate = 1.5 must be a number, at least 0 and at most 1"),
        ({"selector": "varience"}, "selector = 'varience' must be one of .* did you mean variance"),
        ({"content": "meen"}, "content = 'meen' must be one of .* did you mean mean"),
        ({"rounding": "ceil"}, "rounding = 'ceil' must be one of"),
        ({"exclude_layers": ("first",)}, "exclude_layers = .* must be a whole number"),
    ],
)
def test_a_wrong_value_names_the_field_and_what_is_allowed(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("entries", "title"), [(SELECTORS, "selector"), (CONTENTS, "content")])
def test_help_and_the_guide_are_made_from_the_registry(entries: dict[str, Entry], title: str) -> None:
    help_lines = " ".join(help_text().split())
    for entry in entries.values():
        assert f"{entry.name}: {entry.group}: {entry.doc}" in help_lines
    table = markdown_table(entries, title)
    assert table in GUIDE.read_text(), f"docs/saf.md must hold this table:\n{table}"


def test_the_registries_are_read_without_torch() -> None:
    code = "import sys, saf_titan.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
