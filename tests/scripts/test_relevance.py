"""The relevance table of a tiny decoder, generated and from a file, and what its command line refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "relevance.py"
TINY = [
    *("--steps", "2", "--batch", "4", "--layers", "1", "--heads", "2", "--width", "8"),
    *("--seeds", "2", "--test-examples", "8", "--examples", "40"),
]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("relevance_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "relevance_script", module)
    spec.loader.exec_module(module)
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["relevance.py", *words])
    script.main()


def rows(output: str) -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("|")]
    return [lines[0], *lines[2:]]


def test_one_row_a_ratio(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(script, monkeypatch, "--task", "agreement", "--qk-ratio", "1", "10", *TINY)
    first, _, second = capsys.readouterr().out.rpartition("\n\n")
    header, *table = rows(first)
    names, (difference, *cells) = rows(second)
    assert difference == "10 - 1"
    for name, cell in zip(names[1:], cells, strict=True):
        low, high = (float(row[1 + header[1:].index(name)].split(" ± ")[0]) for row in table)
        assert float(cell.split(" ± ")[0]) == pytest.approx(high - low, abs=2e-3)
    assert [row[0] for row in table] == ["1", "10"]
    assert header[1:] == list(script.COLUMNS)
    for row in table:
        values = {name: float(cell.split(" ± ")[0]) for name, cell in zip(header[1:], row[1:], strict=True)}
        assert values["steps"] == 2
        assert 0 <= values["ACMC"] <= values["AC"] <= values["AC+1"] <= 1
        assert values["mass"] <= values["peak"]
        # attention of an untrained decoder is spread out, and it has learnt nothing
        assert 0 < values["mass"] < 0.5
        assert 0.4 < values["NLL"] < 1


def test_a_file_and_a_loss_to_stop_at(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    annotators = [{"label": "normal"}, {"label": "normal"}]
    posts = {
        str(n): {"post_tokens": ["so", "bad"], "annotators": annotators, "rationales": [[0, 1]]} for n in range(40)
    }
    (tmp_path / "dataset.json").write_text(json.dumps(posts))
    options = ["--task", "hatexplain", "--data", str(tmp_path / "dataset.json"), "--qk-ratio", "1"]
    run(script, monkeypatch, *options, *TINY, "--steps", "30", "--stop-loss", "1")
    header, row = rows(capsys.readouterr().out)
    # one label only: nothing to learn, so it stops as soon as it may
    assert row[1 + header[1:].index("steps")] == "20 ± 0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "agreement", "--data", "x"], "generates its examples and reads no file"),
        (["--task", "squad"], "give its path"),
        (["--task", "squad", "--data", "gone.json"], "gone.json"),
    ],
)
def test_what_is_refused(script: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        run(script, monkeypatch, *words)
