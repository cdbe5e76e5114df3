"""Numbers are given only where they were measured, and like is compared with like."""

from pathlib import Path

import pytest

from saf_titan.report.run_log import read_run
from saf_titan.report.summary import MIN_INTERVALS, StepTime, final_validation, step_time, validation_at
from tests.report.runs import Row, freeze_row, session_row, train_row, undone_row, validation_row, write_run


def times(folder: Path, rows: list[Row]) -> StepTime:
    log = read_run(write_run(folder, [session_row("start", 0), *rows]))
    return step_time(log, log.freezes[0])


def seconds(first_step: int, *values: float) -> list[Row]:
    return [train_row(first_step + i, step_seconds=value) for i, value in enumerate(values)]


def test_medians_without_the_first_interval_of_each_side(tmp_path: Path) -> None:
    before, after = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0), (0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.7, 0.7)
    measured = times(tmp_path, [*seconds(1, 90.0, *before), freeze_row(9, 1), *seconds(10, 80.0, *after)])
    assert (measured.before, measured.after) == (before, after)
    assert measured.problem == ""
    assert measured.spreads is not None
    assert [spread.median for spread in measured.spreads] == pytest.approx([1.35, 0.55])
    # quartiles by linear interpolation, as in NumPy
    assert (measured.spreads[0].low, measured.spreads[0].high) == pytest.approx((1.175, 1.525))
    assert measured.speedup is not None
    assert measured.speedup.median == pytest.approx(1.35 / 0.55)
    assert (measured.speedup.low, measured.speedup.high) == pytest.approx((1.175 / 0.7, 1.525 / 0.5))


def test_noise_is_not_measurable(tmp_path: Path) -> None:
    noisy = [1.0, 1.4, 0.8, 1.3, 0.9, 1.2, 1.1, 0.7, 1.5]
    faster = [0.9 * value for value in noisy]
    measured = times(tmp_path, [*seconds(1, 9.0, *noisy), freeze_row(10, 1), *seconds(11, 9.0, *faster)])
    assert measured.speedup is not None
    assert measured.speedup.low < 1 < measured.speedup.median < measured.speedup.high
    assert "the step times spread so widely that a step may have become anything from" in measured.problem


@pytest.mark.parametrize(("before", "after"), [(9, 8), (8, 9), (0, 20), (20, 0)])
def test_too_few_intervals_are_not_measured(tmp_path: Path, before: int, after: int) -> None:
    rows = [*seconds(1, *[1.0] * before), freeze_row(before, 1), *seconds(before + 1, *[0.5] * after)]
    measured = times(tmp_path, rows)
    assert measured.spreads is None
    assert measured.speedup is None
    kept = max(0, before - 1), max(0, after - 1)
    assert f"{kept[0]} logged intervals before and {kept[1]} after" in measured.problem
    assert f"at least {MIN_INTERVALS} of each" in measured.problem


def test_another_number_of_ranks_is_not_compared(tmp_path: Path) -> None:
    rows = [
        *seconds(1, *[1.0] * 9),
        freeze_row(9, 1),
        session_row("resume", 9, world_size=8),
        *seconds(10, *[0.1] * 9),
    ]
    assert times(tmp_path, rows).after == ()


def test_another_batch_size_is_not_compared(tmp_path: Path) -> None:
    larger = [row | {"tokens_per_second": 8192.0} for row in seconds(10, *[0.5] * 9)]
    assert times(tmp_path, [*seconds(1, *[1.0] * 9), freeze_row(9, 1), *larger]).after == ()


def test_only_up_to_the_next_freeze(tmp_path: Path) -> None:
    rows = [
        *seconds(1, 1.0, 1.0, 1.0),
        freeze_row(3, 1),
        *seconds(4, 0.5, 0.5, 0.5),
        freeze_row(6, 2),
        *seconds(7, *[0.1] * 3),
    ]
    log = read_run(write_run(tmp_path, [session_row("start", 0), *rows]))
    first, last = log.freezes
    assert step_time(log, first) == StepTime(before=(1.0, 1.0), after=(0.5, 0.5))
    assert step_time(log, last) == StepTime(before=(0.5, 0.5), after=(0.1, 0.1))
    assert step_time(log, first, last) == StepTime(before=(1.0, 1.0), after=(0.1, 0.1))


def test_the_interval_after_an_interruption_is_left_out(tmp_path: Path) -> None:
    rows = [
        *seconds(1, 9.0, 1.0, 1.0),
        session_row("resume", 3),
        *seconds(4, 9.0, 1.0),
        undone_row(5, 1),
        *seconds(6, 9.0, 1.0),
        freeze_row(7, 1),
        *seconds(8, 9.0, 0.5),
    ]
    assert times(tmp_path, rows) == StepTime(before=(1.0,) * 4, after=(0.5,))


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    rows = [*seconds(1, 1.0, 1.0, 1.0), freeze_row(3, 1), *(train_row(step, step_seconds=None) for step in range(4, 9))]
    assert times(tmp_path, rows).after == ()


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
