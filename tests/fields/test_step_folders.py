"""Checkpoints are found by the number in their names and by their index."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.fields.step_folders import INDEX, is_complete, newest_of, step_of


@pytest.mark.parametrize(
    ("name", "suffix", "step"),
    [
        ("step-12", "", 12),
        ("step-0", "", 0),
        ("step-12", "-being-saved", None),
        ("step-12-being-saved", "-being-saved", 12),
        ("step-12-live", "", None),
        ("step-12.5", "", None),
        ("astep-12", "", None),
        ("step-", "", None),
    ],
)
def test_the_step_is_the_number_in_the_name(name: str, suffix: str, step: int | None) -> None:
    assert step_of(Path("run/checkpoint") / name, suffix) == step


def test_the_newest_is_complete_and_of_the_largest_number(tmp_path: Path) -> None:
    for name in ("step-9", "step-10", "step-10-live", "step-11"):
        (tmp_path / name).mkdir()
    assert newest_of(tmp_path.glob("*")) is None
    for name in ("step-9", "step-10", "step-10-live"):
        (tmp_path / name / INDEX).touch()
    assert is_complete(tmp_path / "step-10-live")
    assert not is_complete(tmp_path / "step-11")
    assert newest_of(tmp_path.glob("*")) == tmp_path / "step-10"
    assert newest_of((tmp_path / "none").glob("*")) is None
