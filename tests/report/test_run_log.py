"""The log of a run is read as the course the run finally took, whatever happened on the way."""

import math
from pathlib import Path

import pytest

from saf_titan.report.run_log import read_run
from tests.report.runs import (
    freeze_row,
    plain_rows,
    session_row,
    train_row,
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
    assert [(point.step, point.loss, point.world_size) for point in log.train] == [
        (5, 1.0, 2),
        (10, 1.0, 2),
        (15, 2.0, 4),
    ]
    assert log.freezes == []
    assert log.validations == []
    assert log.last_step == 15
    assert [session.resumed for session in log.sessions] == [False, True]


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
    "line",
    [
        '{"kind": "train", "step": 125, "los',
        "\x00\x00\x00",
        "[]",
        "{}",
        '{"kind": "train"}',
        '{"kind": "train", "step": "125", "loss": 1.0}',
        '{"kind": "train", "step": 125}',
        '{"kind": "train", "step": 125, "loss": null}',
        '{"kind": 3, "step": 125, "loss": 1.0}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:30],
)
def test_a_broken_line_is_passed_over(tmp_path: Path, line: str) -> None:
    folder = write_run(tmp_path, plain_rows())
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + line)
    assert read_run(folder).last_step == 120


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path, plain_rows())
    path = folder / "metrics.jsonl"
    path.write_bytes(b"\xff\xfe\n" + path.read_bytes())
    assert read_run(folder).last_step == 120


def test_when_a_run_is_finished(tmp_path: Path) -> None:
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


def test_a_loss_that_is_no_number_is_kept_for_what_it_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [session_row("start", 0), train_row(5, loss=float("nan"))])
    assert "NaN" in (folder / "metrics.jsonl").read_text()
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
    with pytest.raises(ValueError, match=r"metrics.jsonl: cannot be read"):
        read_run(tmp_path)
