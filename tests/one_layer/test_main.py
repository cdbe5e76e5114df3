"""The laboratory's command line. Covers one_layer/experiments.py and one_layer/picture.py."""

import csv
import json
import math
from pathlib import Path

import pytest

from saf_titan.one_layer.__main__ import main
from saf_titan.one_layer.experiments import FIGURE_2

FAST = ["--until-loss", "0.3", "--seeds", "2", "--optimizer", "gd", "--rate", "1"]


def test_predict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--ratio", "1", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["ratio", "CACO", "CAFO", "FACO", "FAFO"]
    assert lines[2].split() == ["1", "0.9859", "0.8209", "0.9995", "0.9809"]


def test_figure_2_has_eight_maps_with_their_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure2", *FAST, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "figure2.csv").read_text().splitlines()))
    assert [row["setting"] for row in rows] == [title for title, _, _ in FIGURE_2]
    for row in json.loads((tmp_path / "figure2.json").read_text()):
        assert row["reached"] == 2
        assert row["mass"] == pytest.approx(row["predicted"], abs=0.12)
    assert capsys.readouterr().out.splitlines()[0].split() == ["setting", "predicted", "mass", "AC", "steps", "reached"]


def test_sweep(tmp_path: Path) -> None:
    words = ["sweep", "--parametrization", "FAFO", "--ratio", "1", "10", *FAST, "--out", str(tmp_path)]
    assert main(words) == 0
    slow, fast = json.loads((tmp_path / "sweep.json").read_text())
    assert slow["mass"] < fast["mass"]
    assert (tmp_path / "sweep.png").is_file()


def test_training_that_does_not_arrive_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--max-steps", "3", "--optimizer", "adamw", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "5 of 5 seeds did not reach NLL 0.001 in 3 steps; raise --max-steps or --rate" in captured.err
    # adamw follows other laws: no prediction, and no NaN in JSON
    (row,) = json.loads((tmp_path / "train.json").read_text())
    assert row["predicted"] is None
    assert math.isfinite(row["mass"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--classes", "1"], "at least 2 classes"),
        (["train", "--ratio", "-1"], "a ratio must be positive"),
        (["train", "--parametrization", "XYZ"], "invalid choice"),
        (["train", "--ratio-end", "5"], "is reached at the end of a ramp: give --ramp-steps"),
        ([], "command"),
    ],
)
def test_mistakes_are_one_line_and_status_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_options_without_effect_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, "--out", str(tmp_path), "--seed", "7", "--batch-size", "4"]
    assert main(["train", *words, "--aligned", "--ramp-steps", "9"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: --ramp-steps has no effect without --ratio-end, the ratio at the end of the ramp",
        "note: --batch-size has no effect with --optimizer gd, which takes the whole task at every step",
        "note: --seed has no effect with --aligned and --optimizer gd, where nothing is drawn",
        "note: 2 equal models are trained, because nothing is drawn",
    ]
    assert main(["figure2", "--parametrization", "FAFO", "--classes", "1"]) == 2
    assert capsys.readouterr().err.startswith("note: --parametrization has no effect on figure2")
