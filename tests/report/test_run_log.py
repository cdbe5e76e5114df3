"""The log of a run is read as the course the run finally took, whatever happened on the way."""

import math
from pathlib import Path

import pytest

from saf_titan.report.rows import FinishRow, ResumeRow, StartRow, UnknownRow
from saf_titan.report.run_log import read_run
from tests.report.runs import (
    finish_row,
    freeze_row,
    plain_rows,
    session_row,
    train_row,
    undone_row,
    validation_row,
    write_run,
)


def test_rows_by_kind_in_order(tmp_path: Path) -> None:
    rows = [session_row("start", 0), train_row(5), validation_row(5, "scheduled"), freeze_row(5, 2), train_row(10)]
    log = read_run(write_run(tmp_path, rows))
    assert [point.step for point in log.train] == [5, 10]
    assert [point.phase for point in log.validations] == ["scheduled"]
    assert [freeze.step for freeze in log.freezes] == [5]
    assert (log.last_step, log.world_size) == (10, 2)
    assert log.config is not None
    assert log.config.training.steps == 120


def test_a_resume_drops_what_lay_beyond_it(tmp_path: Path) -> None:
    rows = [
        session_row("start", 0),
        *(train_row(step, loss=1.0) for step in (5, 10, 15, 20)),
        freeze_row(12, 3),
        validation_row(20, "final"),
        session_row("resume", 10, world_size=4),
        train_row(15, loss=2.0),
    ]
    log = read_run(write_run(tmp_path, rows))
    assert [(point.step, point.loss, log.world_size_of(point.step)) for point in log.train] == [
        (5, 1.0, 2),
        (10, 1.0, 2),
        (15, 2.0, 4),
    ]
    assert log.freezes == []
    assert log.validations == []
    assert log.last_step == 15
    assert [type(session) for session in log.sessions] == [StartRow, ResumeRow]


def test_of_rows_for_the_same_step_the_later_wins(tmp_path: Path) -> None:
    rows = [
        session_row("start", 0),
        train_row(10, loss=1.0),
        freeze_row(10, 3),
        validation_row(10, "before_freeze", 5.0),
        validation_row(10, "after_freeze", 6.0),
        session_row("resume", 10),
        freeze_row(10, 4) | {"seconds": {"fit": 9.0}},
        validation_row(10, "before_freeze", 7.0),
    ]
    log = read_run(write_run(tmp_path, rows))
    assert [freeze.seconds for freeze in log.freezes] == [{"fit": 9.0}]
    assert {point.phase: point.loss for point in log.validations} == {"before_freeze": 7.0, "after_freeze": 6.0}


def test_a_new_start_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    log = read_run(write_run(tmp_path, [*plain_rows(), session_row("start", 0), train_row(5)]))
    assert [point.step for point in log.train] == [5]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"kind": "train", "step": 125, "los', "it is no JSON"),
        ("\x00\x00\x00", "it is no JSON"),
        ("[]", "no JSON object with a kind"),
        ('{"kind": "train", "step": "125", "loss": 1.0}', "the step of a 'train' row is '125'"),
        ('{"kind": "train", "step": 125}', "a 'train' row has no loss"),
    ],
)
def test_a_damaged_line_is_left_out_and_said(tmp_path: Path, line: str, problem: str) -> None:
    folder = write_run(tmp_path, plain_rows())
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]))
    log = read_run(folder)
    assert [point.step for point in log.train] == list(range(5, 121, 5))
    (damaged,) = log.damaged
    assert damaged.startswith("line 4: ")
    assert problem in damaged


def test_a_row_of_an_unknown_kind_is_kept(tmp_path: Path) -> None:
    log = read_run(write_run(tmp_path, [*plain_rows(), {"kind": "weather", "step": 3, "rain": 0.5}]))
    assert log.unknown == [UnknownRow(kind="weather", fields={"step": 3, "rain": 0.5})]
    assert log.damaged == []
    assert log.last_step == 120


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path, plain_rows())
    path = folder / "metrics.jsonl"
    path.write_bytes(b"\xff\xfe\n" + path.read_bytes())
    log = read_run(folder)
    assert log.last_step == 120
    assert log.damaged == ["line 1: it is no JSON"]


def test_the_finish_row_says_that_a_run_is_finished(tmp_path: Path) -> None:
    rows = [*plain_rows(55), finish_row(57, 12.5)]
    timed = read_run(write_run(tmp_path / "timed", rows, "--saf.enable=true", "--saf.matched_seconds=12.5"))
    assert timed.finished
    assert timed.last_step == 57
    assert timed.finish == FinishRow(step=57, seconds=12.5)
    # steps beyond the planned ones do not finish a run that trains for a time
    going_on = write_run(tmp_path / "on", plain_rows(130), "--saf.enable=true", "--saf.matched_seconds=12.5")
    assert not read_run(going_on).finished
    # a finished run whose training.steps was raised goes on
    raised = read_run(write_run(tmp_path / "raised", [*rows, session_row("resume", 57), train_row(60)]))
    assert not raised.finished
    assert raised.last_step == 60


def test_undone_freezes_are_read(tmp_path: Path) -> None:
    rows = [
        session_row("start", 0),
        undone_row(4, 2),
        freeze_row(8, 1),
        undone_row(12, 3, (2.0, 2.5)),
        session_row("resume", 10),
    ]
    log = read_run(write_run(tmp_path, rows))
    assert [freeze.step for freeze in log.freezes] == [8]
    assert [(row.step, row.heads, row.held_out_losses) for row in log.undone] == [(4, 2, (3.0, 3.25))]


def test_a_freeze_that_is_repeated_counts_once(tmp_path: Path) -> None:
    rows = [session_row("start", 0), freeze_row(10, 3), session_row("resume", 10), undone_row(10, 3)]
    log = read_run(write_run(tmp_path, rows))
    assert log.freezes == []
    assert [row.step for row in log.undone] == [10]


def test_a_run_of_an_older_version_is_finished_by_its_last_step(tmp_path: Path) -> None:
    # the last steps may lie between two log lines
    folder = write_run(tmp_path, plain_rows(115))
    assert not read_run(folder).finished
    (folder / "checkpoint" / "step-120").mkdir(parents=True)
    assert read_run(folder).finished
    assert read_run(write_run(tmp_path / "validated", [*plain_rows(115), validation_row(120, "final")])).finished
    assert read_run(write_run(tmp_path / "logged", plain_rows(120))).finished


def test_an_empty_log(tmp_path: Path) -> None:
    log = read_run(write_run(tmp_path, []))
    assert (log.train, log.last_step, log.world_size) == ([], 0, None)


@pytest.mark.parametrize("text", ["null", "NaN"])
def test_a_loss_that_is_not_finite_is_nan(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path, [session_row("start", 0)])
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + f'{{"kind": "train", "step": 5, "loss": {text}}}\n')
    assert math.isnan(read_run(folder).train[0].loss)


@pytest.mark.parametrize("content", [None, "training = ", "[training]\nstepps = 3"])
def test_a_configuration_that_is_missing_or_damaged(tmp_path: Path, content: str | None) -> None:
    folder = write_run(tmp_path, plain_rows())
    (folder / "config.toml").unlink()
    if content is not None:
        (folder / "config.toml").write_text(content)
    log = read_run(folder)
    assert log.config is None
    assert log.last_step == 120


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"metrics.jsonl: no such file, so .* is not the folder of a run; give the dump"
    ):
        read_run(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere: no such folder; give the dump_folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file: it is no folder"):
        read_run(tmp_path / "file")
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"metrics.jsonl: cannot be read \(Is a directory\)"):
        read_run(tmp_path)
