"""Progress lines: not too many, and a time left that belongs to the stage."""

from saf_titan.saf.calibrate.progress import TimedProgress


def test_lines_and_time_left() -> None:
    now, lines = 0.0, list[str]()
    progress = TimedProgress(lines.append, every=5.0, clock=lambda: now)
    for done in range(1, 5):
        now += 3.0
        progress("forward", done, 4)
    # of the second stage one eighth took 6 s
    now += 6.0
    progress("statistics", 1, 8)
    assert lines == [
        "calibration: forward 2/4, 6 s left",
        "calibration: forward 4/4, 0 s left",
        "calibration: statistics 1/8, 42 s left",
    ]
