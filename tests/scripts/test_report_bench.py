"""The benchmark of the report writes the page of the model that it names, and prints its size and time."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from saf_titan.report.write import REPORT_FILE

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "report.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("report_bench_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_small_model(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--out", str(tmp_path), "--layers", "2", "--heads", "2", "--length", "128"]
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    script.main()
    page = tmp_path / REPORT_FILE
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"2 layers x 2 heads, T = 128, 2 static: \d+\.\d\d MB, written in \d+ s of processor time\n", said
    )
    assert f"{page.stat().st_size / 1e6:.2f} MB" in said
    text = page.read_text()
    for part in ('data-head="L1H1"', "Freeze after step 1,000", "<svg"):
        assert part in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "0"], "--layers and --heads must be at least 1"),
        (["--length", "100"], "--length 100 must be a multiple of 64"),
        (["--length", "0"], "--length 0 must be a multiple of 64"),
    ],
)
def test_sizes_that_make_no_page(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    with pytest.raises(SystemExit):
        script.main()
    assert message in capsys.readouterr().err.splitlines()[-1]
