"""What is said where torchrun would kill a run before it has stopped; tests/e2e/test_interrupt.py stops runs.

Covers run/signals.py.
"""

import pytest

from saf_titan.run.stop import GRACE_VARIABLE, too_long_to_stop

TORCHRUN = {"TORCHELASTIC_RUN_ID": "run"}


@pytest.mark.parametrize(
    ("seconds", "environment", "said"),
    [
        (40, TORCHRUN, "a step takes 40 s, and torchrun kills a run 30 s after it was asked to stop"),
        (40, TORCHRUN, "--shutdown-timeout 160"),
        (16, TORCHRUN, "--shutdown-timeout 120"),
        (40, TORCHRUN | {GRACE_VARIABLE: "60"}, "torchrun kills a run 60 s after"),
        (40, TORCHRUN | {GRACE_VARIABLE: "soon"}, "torchrun kills a run 30 s after"),
    ],
)
def test_a_long_step_is_said(seconds: float, environment: dict[str, str], said: str) -> None:
    assert said in (too_long_to_stop("a step", seconds, environment) or "")


def test_nothing_is_said_without_reason() -> None:
    assert too_long_to_stop("a step", 10, TORCHRUN) is None
    assert too_long_to_stop("a step", 40, TORCHRUN | {GRACE_VARIABLE: "600"}) is None
    # nobody kills a run without a launcher
    assert too_long_to_stop("a step", 40, {}) is None
