"""The command line of the one-layer model. Covers one_layer/experiments.py and one_layer/picture.py."""

import csv
import json
import math
from pathlib import Path

import pytest

from saf_titan.one_layer.__main__ import main
from saf_titan.one_layer.experiments import FIGURE_2

BAD_NUMBERS = ("0", "-1", "nan", "inf", "x")
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


def test_a_sweep_that_the_theory_does_not_cover_has_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves: list[object] = []
    monkeypatch.setattr("saf_titan.one_layer.__main__.save_sweep", lambda path, arms, curve: curves.append(curve))
    words = ["sweep", "--ratio", "1", "--seeds", "1", "--until-loss", "0.3", "--out", str(tmp_path)]
    assert main([*words, "--optimizer", "adamw", "--rate", "0.02"]) == 0
    assert main([*words, "--optimizer", "gd"]) == 0
    assert [len(curve) for curve in curves] == [0, 60]  # type: ignore[arg-type]
    assert [row["predicted"] is None for row in json.loads((tmp_path / "sweep.json").read_text())] == [False]


def test_training_that_does_not_arrive_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--max-steps", "3", "--optimizer", "adamw", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "5 of 5 seeds did not reach NLL 0.001 in 3 steps; raise --max-steps, or change --rate" in captured.err
    # adamw follows other laws: no prediction, and no NaN in JSON
    (row,) = json.loads((tmp_path / "train.json").read_text())
    assert row["predicted"] is None
    assert math.isfinite(row["mass"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--classes", "1"], "--classes: '1' must be"),
        *((["predict", "--ratio", value], f"--ratio: '{value}' must be a number, above 0") for value in BAD_NUMBERS),
        *((["train", "--rate", value], f"--rate: '{value}' must be a number, above 0") for value in BAD_NUMBERS),
        (["predict", "--until-loss", "5"], "until_loss = 5: must be at least 1e-12 and below 1.386 nats"),
        (["predict", "--until-loss", "1e-20"], "until_loss = 1e-20: must be at least 1e-12"),
        (["train", "--until-loss", "1.4"], "until_loss = 1.4: must be"),
        (["predict", "--until-loss", "1.385"], "training begins at"),
        (["train", "--parametrization", "FAFO", "--until-loss", "1.385"], "training begins at"),
        (["train", "--ratio-end", "4"], "give both, or neither"),
        (["train", "--ramp-steps", "4"], "give both, or neither"),
        (["train", "--optimizer", "gd", "--batch-size", "4"], "--batch-size is for sgd and adamw"),
        (["train", "--seed", "-1"], "--seed: '-1' must be"),
        (["train", "--rate", "1e30", "--parametrization", "FAFO"], "the loss is not finite after 10 steps; lower rate"),
        (["sweep", "--ratio", "1", "1"], "the same ratio is given twice"),
        (["figure2", "--parametrization", "FAFO"], "unrecognized arguments"),
        (["train", "--parametrization", "XYZ"], "invalid choice"),
        ([], "command"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trains = words and words[0] != "predict"
    assert main([*words, "--out", str(tmp_path)] if trains else words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len([line for line in captured.err.splitlines() if ": step " not in line]) == 1
    assert captured.out == ""


def test_results_that_cannot_be_written_are_known_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    # an endless training, if it began
    for command in ("train", "figure2", "sweep"):
        assert main([command, "--max-steps", "1000000000", "--until-loss", "1e-12", "--out", str(file)]) == 2
        assert capsys.readouterr().err == f"error: --out {file}: a part of this path is a file; name a folder\n"
    assert main(["train", "--max-steps", "1000000000", "--until-loss", "1e-12", "--out", str(file / "x")]) == 2


def test_equal_models_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "--optimizer", "gd", "--aligned", "--seeds", "2", "--seed", "3", "--max-steps", "1"]
    # one step does not reach the loss
    assert main([*words, "--out", str(tmp_path)]) == 1
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: --seed has no effect with --aligned and --optimizer gd, where nothing is drawn",
        "note: all 2 seeds give the same model, because nothing is drawn",
    ]
