"""The benchmark of contribution weights says what is missing before it opens a model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "give MODEL and --text FILE, or neither for random layers"),
        (["--text", "text.txt"], "give MODEL and --text FILE, or neither for random layers"),
        (["model", "--text", "nowhere.txt"], "nowhere.txt does not exist: give a UTF-8 text"),
        (["nowhere", "--text", __file__], "nowhere does not exist: give a checkpoint"),
    ],
)
def test_exact_needs_a_model_and_a_text(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("analysis")
    monkeypatch.setattr(sys, "argv", ["analysis.py", "exact", *words])
    with pytest.raises(SystemExit):
        bench.main()
    assert message in capsys.readouterr().err.splitlines()[-1]
