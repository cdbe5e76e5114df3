"""The command line of a run, up to the point where torch would be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config.describe import EXAMPLES
from saf_titan.config.packaged import packaged_names
from saf_titan.train import main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("words", [[], ["--training.steps", "3"], ["--dry-run"]], ids=str)
def test_without_a_configuration_it_asks_for_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert "--config" in line
    assert "debug_cpu" in line
    assert "--help" in line
    assert captured.out == ""


def test_the_examples_exist() -> None:
    assert {name for name, _ in EXAMPLES} <= set(packaged_names())


def test_help_shows_usage_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("usage:", "torchrun", "--config FILE", "--dry-run", "SAF_TITAN_DEVICE", "debug_cpu"):
        assert word in text, word


def test_missing_data_are_one_line_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--config={ROOT / 'configs' / 'debug_cpu.toml'}", f"--data.path={tmp_path / 'nowhere'}"]
    assert main([*words, f"--dump_folder={tmp_path / 'run'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "[data] path" in line
    assert str(tmp_path / "nowhere") in line
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_ranks_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert main([f"--config={ROOT / 'configs' / 'debug_cpu.toml'}", "--dry-run"]) == 2
    assert "WORLD_SIZE" in capsys.readouterr().err


def test_a_mistake_that_only_the_model_shows_is_one_line_in_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--config={ROOT / 'configs' / 'debug_cpu.toml'}", "--circuits.group", "nothing:factor=2", "--dry-run"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: circuits.group: nothing matches no parameter of the model: give one of qk, ov, mlp")
