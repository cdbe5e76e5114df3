"""What freezing would save, measured on a real checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.study.__main__ import main
from tests.e2e.conftest import corpus_overrides
from tests.e2e.runs import train

__all__ = ["corpus_overrides"]
pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Path:
    """A run with heads that became static after step 4."""
    folder = tmp_path_factory.mktemp("run")
    train(folder, *corpus_overrides, "--training.steps", "6", "--lr_scheduler.total_steps", "20", ranks=1)
    return folder


def test_a_checkpoint_from_before_the_freeze(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAF_TITAN_DEVICE", "cpu")
    words = ["advise", str(run / "checkpoint" / "step-4"), "--rates", "0.25", "0.5", "--rounds", "2"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "16 steps are left" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith(("25%", "50%"))]
    assert [row[:2] for row in rows] == [["25%", "2"], ["50%", "4"]]
    assert text.splitlines()[-2].startswith(("No", "Yes", "Maybe", "Rather not"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["{run}"], "has static heads already; give a checkpoint from before the freeze"),
        (["{run}/nowhere"], "is neither a checkpoint"),
        (["{run}", "--rates", "2"], "must be a number, above 0 and at most 1"),
    ],
)
def test_mistakes_are_one_line(
    run: Path,
    words: list[str],
    fault: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAF_TITAN_DEVICE", "cpu")
    assert main(["advise", *(word.replace("{run}", str(run)) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fault in line
