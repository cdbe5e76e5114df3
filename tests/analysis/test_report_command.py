"""`saf_titan.analysis report` writes the page of a run, of a model on a text, or of both.

Covers the command `report` of analysis/__main__.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saf_titan.analysis.__main__ import main
from tests.hf.test_commands import TEXT, write_model
from tests.report.runs import write_frozen_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("made") / "model")
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_a_model_of_transformers(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--text", str(model / "text.txt"), "--sequences", "2", "--length", "16", "--passage", "12"]
    assert main(["report", str(model), *words, "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    page = (tmp_path / "page.html").read_text()
    assert "Measured on 2 sequences of 16 tokens" in page
    shown = re.findall(r'data-token="\d+"[^>]*>([^<]*)</button>', page)[:12]
    assert "".join(shown) == TEXT[:12]


def test_a_run_without_a_text_has_its_ordinary_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_frozen_run(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert "Freeze after step 60" in (run / "report.html").read_text()


def test_several_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_frozen_run(tmp_path / name)) for name in ("one", "two")]
    assert main(["report", *runs, "--out", str(tmp_path / "page.html"), "--length", "64"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'page.html'}\n"
    assert output.err == "note: --length has no effect without --text, which a model is measured on\n"
    assert "Comparison of runs" in (tmp_path / "page.html").read_text()
    assert main(["report", *runs, "--text", "text.txt"]) == 2
    assert "--text is for one run or model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "is no run's folder (it has no metrics.jsonl), so a report needs a text: give --text FILE"),
        (("--text", "text.txt"), "give --out FILE: only a run's report has a place of its own"),
        (("--text", "nowhere.txt", "--out", "page.html"), "--text: nowhere.txt does not exist: give a UTF-8 text"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    model: Path,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(model)
    assert main(["report", ".", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (model / "page.html").exists()
