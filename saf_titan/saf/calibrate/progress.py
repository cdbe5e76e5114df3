"""Report the progress of a calibration, or of other work in stages, as text with the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimedProgress:
    """A `capture.Progress` that writes a line now and then: "calibration: forward 3/16, 40 s left"."""

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        every: float,
        work: str = "calibration",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """every: minimum number of seconds between two lines. work: the first word of each line.

        The time left is that of the current stage, at its speed so far.
        """
        self._write, self._every, self._work, self._clock = write, every, work, clock
        self._written = self._called = clock()
        self._starts: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        # a stage begins when the stage before it made its last call
        start = self._starts.setdefault(stage, self._called)
        self._called = now
        if now - self._written >= self._every:
            self._written = now
            left = (now - start) / done * (total - done)
            self._write(f"{self._work}: {stage} {done}/{total}, {left:.0f} s left")
