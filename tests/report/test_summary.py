"""Numbers are given only where they were measured, and like is compared with like."""

from pathlib import Path

import pytest

from saf_titan.report.run_log import read_run
from saf_titan.report.summary import StepTime, final_validation, step_time, validation_at
from tests.report.runs import Row, freeze_row, session_row, train_row, validation_row, write_run


def times(folder: Path, rows: list[Row]) -> StepTime | None:
    log = read_run(write_run(folder, [session_row("start", 0), *rows]))
    return step_time(log, log.freezes[0])


def seconds(first_step: int, *values: float) -> list[Row]:
    return [train_row(first_step + i, step_seconds=value) for i, value in enumerate(values)]


def test_medians_without_the_first_interval_of_each_side(tmp_path: Path) -> None:
    measured = times(tmp_path, [*seconds(1, 90.0, 1.0, 9.0, 1.25), freeze_row(4, 1), *seconds(5, 80.0, 0.5, 0.5, 7.0)])
    assert measured == StepTime(before=1.25, after=0.5)
    assert measured.ratio == 2.5


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (0, 5), (5, 0)])
def test_too_few_intervals_are_not_measured(tmp_path: Path, before: int, after: int) -> None:
    rows = [*seconds(1, *[1.0] * before), freeze_row(before, 1), *seconds(before + 1, *[1.0] * after)]
    assert times(tmp_path, rows) is None


def test_another_number_of_ranks_is_not_compared(tmp_path: Path) -> None:
    rows = [
        *seconds(1, 1.0, 1.0, 1.0),
        freeze_row(3, 1),
        session_row("resume", 3, world_size=8),
        *seconds(4, *[0.1] * 5),
    ]
    assert times(tmp_path, rows) is None


def test_only_up_to_the_next_freeze(tmp_path: Path) -> None:
    rows = [
        *seconds(1, 1.0, 1.0, 1.0),
        freeze_row(3, 1),
        *seconds(4, 0.5, 0.5, 0.5),
        freeze_row(6, 2),
        *seconds(7, *[0.1] * 9),
    ]
    assert times(tmp_path, rows) == StepTime(before=1.0, after=0.5)


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    rows = [*seconds(1, 1.0, 1.0, 1.0), freeze_row(3, 1), *(train_row(step, step_seconds=None) for step in range(4, 9))]
    assert times(tmp_path, rows) is None


def test_validation_by_phase_and_step(tmp_path: Path) -> None:
    rows = [
        validation_row(4, "before_freeze", 3.0),
        validation_row(4, "after_freeze", 4.0),
        validation_row(8, "before_freeze", 5.0),
    ]
    log = read_run(write_run(tmp_path, rows))
    assert validation_at(log, "before_freeze", 4) == 3.0
    assert validation_at(log, "after_freeze", 8) is None
    last = final_validation(log)
    assert last is not None
    assert last.loss == 5.0
