"""The type of matrix products follows the device unless it is named."""

from __future__ import annotations

import pytest

from saf_titan import compat
from saf_titan.config import load_config
from saf_titan.run.dry_run import describe
from saf_titan.run.precision import compute_precision, precision_line


@pytest.mark.parametrize(
    ("chosen", "is_cpu", "expected", "reason"),
    [
        ("auto", True, "float32", '"auto", on a CPU'),
        ("auto", False, "bfloat16", '"auto", on an accelerator'),
        ("bfloat16", True, "bfloat16", '"bfloat16"'),
        ("float32", False, "float32", '"float32"'),
    ],
)
def test_precision(monkeypatch: pytest.MonkeyPatch, chosen: str, is_cpu: bool, expected: str, reason: str) -> None:
    monkeypatch.setattr(compat, "is_cpu", lambda: is_cpu)
    run = load_config(None, [f"--training.mixed_precision_param={chosen}", "--model.flavor=debug"])
    assert compute_precision(run) == expected
    line = f"matrix products in {expected} (training.mixed_precision_param = {reason})"
    assert precision_line(run) == line
    assert line in describe(run)


def test_the_default_follows_the_device() -> None:
    assert load_config(None).training.mixed_precision_param == "auto"
