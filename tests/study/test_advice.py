"""The recommendation follows from the measurements, also when it is no."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from saf_titan.study.advice import Advice, RateMeasurement, advice_text, recommendation
from saf_titan.study.statistics import Spread


def at(rate: float, speed: tuple[float, ...], jump: float, seconds: float = 100.0) -> RateMeasurement:
    jumps = {"variance": jump, "output_error": jump / 2}
    return RateMeasurement(
        rate=rate, heads=round(144 * rate), speedup=Spread(speed), ceiling=1.3, jumps=jumps, freeze_seconds=seconds
    )


ADVICE = Advice(
    where="step-100 on cpu",
    loss=3.0,
    step_seconds=2.0,
    attention_share=0.4,
    steps_left=1000,
    slope=1e-4,
    rates=(at(0.25, (1.24, 1.25, 1.26), 0.004), at(0.5, (1.5, 1.5, 1.5), 0.2)),
)


def test_break_even_and_gain_by_hand() -> None:
    quarter = ADVICE.rates[0]
    # a step takes 2 / 1.25 = 1.6 s, so 100 s are paid back after 250 steps
    assert ADVICE.break_even(quarter) == pytest.approx(250)
    # in the time of the other 750, a quarter more steps at 1e-4 nats each
    assert ADVICE.gain(quarter) == pytest.approx(750 * 0.25 * 1e-4)


def test_yes_with_the_rate_that_is_worth_most() -> None:
    lines = list(recommendation(ADVICE))
    assert lines[0] == 'Yes: saf.rate = 0.25, saf.selector = "output_error".'
    assert lines[1].startswith("Because at 25% by output_error the saved time is worth 0.0187 nats")
    assert lines[1].endswith("the freeze costs 0.0020 at once.")


@pytest.mark.parametrize(
    ("advice", "verdict", "reason"),
    [
        (replace(ADVICE, rates=(at(0.25, (0.9, 1.3, 1.0), 0.0),)), "No: a step does not become", "40% of a step"),
        (replace(ADVICE, steps_left=0), "No: the run has ended", "25% by output_error"),
        (
            replace(ADVICE, rates=ADVICE.rates[:1], steps_left=240),
            "No: calibration and fit are paid back after 250 steps, and 240 are left",
            "saf.calibration_sequences",
        ),
        (replace(ADVICE, slope=math.nan), "Maybe: 50% makes a step 1.50 times as fast", "no log"),
        (replace(ADVICE, slope=1e-9), "Rather not: at 25% by output_error", "Training repairs a part"),
    ],
)
def test_no_with_the_reason(advice: Advice, verdict: str, reason: str) -> None:
    text = "\n".join(recommendation(advice))
    assert text.startswith(verdict)
    assert reason in text


def test_the_table_shows_every_rate_and_selector() -> None:
    text = advice_text(ADVICE)
    (line,) = (line for line in text.splitlines() if line.strip().startswith("25%"))
    # t = 4.3027 for two degrees of freedom, deviation 0.01
    assert line.split() == ["25%", "36", "1.250", "+-", "0.025", "1.300", "250", "steps", "+0.0040", "+0.0020"]
    assert "attention is 40%; 1,000 steps are left" in text
