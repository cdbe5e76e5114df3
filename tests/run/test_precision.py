"""The type of matrix products follows the device unless it is named."""

from __future__ import annotations

import pytest

from saf_titan import compat
from saf_titan.config import ConfigError, load_config
from saf_titan.run.dry_run import describe
from saf_titan.run.precision import compute_precision, precision_line, uses_autocast


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


def test_autocast_keeps_weights_and_residual_stream_in_float32() -> None:
    run = load_config(None, ["--training.mixed_precision_param=bfloat16_autocast", "--model.flavor=debug"])
    assert (compute_precision(run), uses_autocast(run)) == ("float32", True)
    line = precision_line(run)
    assert line.startswith("matrix products in bfloat16, residual stream and norms in float32 (")
    assert line in describe(run)


@pytest.mark.parametrize("other", ["--training.dtype=bfloat16", "--model.family=llama3"])
def test_autocast_is_refused_where_it_would_not_keep_them(other: str) -> None:
    flavor = "--model.flavor=debugmodel" if "llama3" in other else "--model.flavor=debug"
    with pytest.raises(ConfigError, match="mixed_precision_param"):
        load_config(None, ["--training.mixed_precision_param=bfloat16_autocast", flavor, other])


def test_the_default_follows_the_device() -> None:
    assert load_config(None).training.mixed_precision_param == "auto"
