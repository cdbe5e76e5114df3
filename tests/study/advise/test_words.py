"""Each answer follows from the figures by the rule that is written down."""

from __future__ import annotations

import dataclasses
import math

import pytest

from saf_titan.report.summary import Quartiles
from saf_titan.study.advise.measure import CEILING, Measured, Rise
from saf_titan.study.advise.words import advice, break_even_updates, gentlest, lines, worth


def exactly(value: float) -> Quartiles:
    return Quartiles(median=value, low=value, high=value)


def measured(
    *, seconds: tuple[float, ...] = (1.0, 0.9, 0.8, 0.5), low: float | None = None, **changes: object
) -> Measured:
    rates = (0.0, 0.25, 0.5, CEILING)
    speedups = {rate: exactly(seconds[0] / own) for rate, own in zip(rates, seconds, strict=True)}
    if low is not None:
        speedups = {rate: dataclasses.replace(speed, low=low) for rate, speed in speedups.items()}
    values = Measured(
        checkpoint="run/checkpoint/step-100",
        setting="gpt debug, 2 x 256 tokens a batch, float32 on cpu",
        step=100,
        steps_left=200,
        micro_batches=2,
        num_heads=8,
        seconds={rate: exactly(own) for rate, own in zip(rates, seconds, strict=True)},
        speedups=speedups,
        attention_share=0.4,
        freeze_seconds={"calibrate": 8.0, "fit": 2.0},
        slope=math.nan,
        loss=3.0,
        rises={
            "variance": {0.25: Rise(heads=2, nats=0.004), 0.5: Rise(heads=4, nats=0.03)},
            "kl": {0.25: Rise(heads=2, nats=0.006), 0.5: Rise(heads=3, nats=0.008)},
        },
    )
    return dataclasses.replace(values, **changes)  # type: ignore[arg-type]


def test_break_even_counts_the_batches_of_an_update() -> None:
    # an update has two batches, each 0.1 s faster: 10 s are saved in 50 updates
    assert break_even_updates(measured(), 0.25) == pytest.approx(50)
    assert break_even_updates(measured(), 0.5) == pytest.approx(25)
    assert math.isinf(break_even_updates(measured(seconds=(1.0, 1.0, 1.1, 1.0)), 0.25))
    assert math.isinf(break_even_updates(measured(seconds=(1.0, 1.0, 1.1, 1.0)), 0.5))


def test_the_selector_that_raises_the_loss_least() -> None:
    assert gentlest(measured(), 0.25) == ("variance", 0.004)
    assert gentlest(measured(), 0.5) == ("kl", 0.008)


def test_the_highest_rate_within_the_limit() -> None:
    answer = advice(measured(), max_rise=0.01)
    assert answer.startswith(
        'Yes: saf.rate = 0.5, saf.selector = "kl". A step becomes 1.25 times as fast (20% less time'
    )
    assert "pays for itself after 25 updates, and the loss changes by +0.0080 nats" in answer
    assert advice(measured(), max_rise=0.005).startswith('Yes: saf.rate = 0.25, saf.selector = "variance"')


@pytest.mark.parametrize(
    ("figures", "beginning"),
    [
        (measured(seconds=(1.0, 0.99, 0.985, 0.9)), "No. No rate makes a step faster by 2% or more for sure"),
        # the quartile: as likely as not it is slower
        (measured(low=0.99), "No. No rate makes a step faster by 2% or more for sure: attention is 40% of a step"),
        (measured(steps_left=0), "Not for this run: it has no update left"),
        (measured(steps_left=20), "No. The freeze takes 10 s, which 25 updates would save, and 20 are left"),
    ],
)
def test_when_the_answer_is_no(figures: Measured, beginning: str) -> None:
    assert advice(figures, max_rise=0.01).startswith(beginning)


def test_the_limit_is_what_the_saved_time_is_worth() -> None:
    # 25 of 200 updates pay for the freeze; in the time of the other 175 there is room for a quarter more
    figures = measured(slope=2e-4)
    assert worth(figures, 0.5) == pytest.approx(2e-4 * 175 * 0.25)
    assert advice(figures).startswith('Yes: saf.rate = 0.5, saf.selector = "kl"')
    assert "what the saved time is worth at the present slope of the training loss (0.0088 nats here)" in advice(
        figures
    )
    # 0.006 nats would be more than 0.002 for half of the heads, and 0.004 more than 0.0008 for a quarter
    assert advice(measured(slope=5e-5)).startswith("Not yet. Even 25% of the heads, chosen by variance")
    # a loss that rises: nothing is worth anything
    assert worth(measured(slope=-1.0), 0.5) == 0
    # without a log, a fixed limit
    assert "the limit (0.01 nats here)" in advice(measured())


def test_a_rise_beyond_the_limit() -> None:
    answer = advice(measured(), max_rise=0.001)
    assert answer.startswith(
        "Not yet. Even 25% of the heads, chosen by variance, raise the loss by 0.0040 nats right away"
    )


def test_everything_that_was_measured_is_shown() -> None:
    text = "\n".join(lines(measured(), max_rise=0.01))
    for fact in (
        "run/checkpoint/step-100: step 100, 200 updates left",
        "25% static           0.9  1.11x  1.11 to 1.11  50 updates",
        "all heads            0.5  2.00x  2.00 to 2.00",
        "all heads live: 40% of it",
        "a freeze takes: calibrate 8 s, fit 2 s",
        "3.0000 (perplexity 20.09)",
        "variance   +0.0040 (2 heads)  +0.0300 (4 heads)",
        "Yes: saf.rate = 0.5",
    ):
        assert fact in text, fact
    assert "\x1b" not in text
