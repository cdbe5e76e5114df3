"""The picture of the README, made from a tiny run in a real browser, and what its script refuses."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.generate.run_folder import write_run, write_step
from tests.hf.test_commands import TEXT
from tests.report.runs import calibration, write_frozen_run
from tests.warm.python import warm_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "report_picture.py"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium (Debian: apt-get install chromium)")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("report_picture_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "executable", warm_python())
    return module


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `frozen` and `plain`, each with a checkpoint, and a text."""
    folder = tmp_path_factory.mktemp("picture")
    (folder / "text.txt").write_text(TEXT)
    plain = write_run(folder / "plain", seq_len=256)
    write_step(plain, 120, None)
    (plain / "metrics.jsonl").write_text('{"kind": "start", "step": 0, "world_size": 1}\n')
    frozen = write_run(folder / "frozen", seq_len=256)
    write_step(frozen, 120, None)
    logged = write_frozen_run(folder / "logged", statistics=calibration(num_heads=3))
    shutil.copy(logged / "metrics.jsonl", frozen)
    shutil.copytree(logged / "saf", frozen / "saf")
    return folder


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["report_picture.py", *map(str, words)])
    script.main()


def test_the_picture_shows_the_chosen_token(
    script: Any, runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pictures = []
    for token in (40, 20):
        out = tmp_path / f"{token}.png"
        run(script, monkeypatch, runs / "frozen/run", "--text", runs / "text.txt", "--token", str(token), "--out", out)
        pictures.append(np.asarray(Image.open(out).convert("RGB")))
        height, width, _ = pictures[-1].shape
        assert f"wrote {out}: {width} x {height} pixels" in capfd.readouterr().out
        # the parts that are kept, and not the whole page, which is longer than the tallest picture
        assert width == script.WIDTH
        assert 500 < height < script.TALLEST - script.MARGIN
    assert pictures[0].shape != pictures[1].shape or (pictures[0] != pictures[1]).any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("frozen/run", "--text", "text.txt", "--token", "64"), "--token 64: the passage has the tokens 0 to 63"),
        (("plain/run", "--text", "text.txt"), "plain/run has no freeze, whose heads the picture shows"),
        (("frozen/run", "--text", "none.txt"), "the report could not be made; the lines above say why"),
        (("frozen/run", "--text", "text.txt", "--out", "no/p.png"), "--out: no/p.png cannot be written"),
    ],
)
def test_what_is_refused(
    script: Any,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(runs)
    # what is not in the repository yet is found from any folder
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    with pytest.raises(SystemExit):
        run(script, monkeypatch, "--out", "picture.png", *words)
    assert message in capfd.readouterr().err.splitlines()[-1]
    assert not (runs / "picture.png").exists()
