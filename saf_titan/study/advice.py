"""Whether freezing pays for a run: what was measured, as text, and a recommendation with its reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from saf_titan.report.rows import perplexity
from saf_titan.study.statistics import Spread
from saf_titan.study.table import aligned


@dataclass(frozen=True, kw_only=True)
class RateMeasurement:
    """What was measured at one share of static heads."""

    rate: float
    heads: int
    speedup: Spread
    """Time of a step with all heads live / with these static, one value a round."""
    ceiling: float
    """The same with these heads removed altogether, median: no way to compute them can be faster."""
    jumps: dict[str, float]
    """Selector -> rise of the held-out loss right after freezing, nats per token."""
    freeze_seconds: float
    """Calibration and fit."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """All that was measured for a checkpoint."""

    where: str
    """Checkpoint and machine."""
    loss: float
    """Held-out loss with the heads as they are."""
    step_seconds: float
    """Time of an optimizer step with them, median."""
    attention_share: float
    """Share of the step that is attention: what is saved if every head is removed."""
    steps_left: int
    """Steps to the end of the schedule; 0 for a run that has ended."""
    slope: float
    """Fall of the training loss in nats a step over the last quarter of the log; nan if it is not known."""
    rates: tuple[RateMeasurement, ...]

    def break_even(self, at: RateMeasurement) -> float:
        """Steps after which calibration and fit are paid back; infinite if a step does not become faster."""
        saved = self.step_seconds * (1 - 1 / at.speedup.mean)
        return at.freeze_seconds / saved if saved > 0 else math.inf

    def gain(self, at: RateMeasurement) -> float:
        """Nats per token that the additional steps of the saved time bring at the present slope; nan if unknown."""
        paid = max(0.0, self.steps_left - self.break_even(at)) if math.isfinite(self.break_even(at)) else 0.0
        return self.slope * paid * (at.speedup.mean - 1)


def advice_text(advice: Advice) -> str:
    """Return table, recommendation and reasons."""
    selectors = list(advice.rates[0].jumps)
    rows = [["static", "heads", "speed (95 %)", "heads removed", "break-even", *(f"loss by {s}" for s in selectors)]]
    for at in advice.rates:
        steps = advice.break_even(at)
        width = at.speedup.half_width
        rows.append(
            [
                f"{at.rate:.0%}",
                str(at.heads),
                f"{at.speedup.mean:.3f} +- {width:.3f}",
                f"{at.ceiling:.3f}",
                f"{steps:,.0f} steps" if math.isfinite(steps) else "never",
                *(f"{at.jumps[selector]:+.4f}" for selector in selectors),
            ]
        )
    lines = [
        advice.where,
        f"held-out loss {advice.loss:.4f} (perplexity {perplexity(advice.loss):,.1f}); a step takes "
        f"{advice.step_seconds:.3g} s, of which attention is {advice.attention_share:.0%}; {advice.steps_left:,} steps "
        "are left",
        "",
        *aligned(rows, left=()),
        "",
        "speed: time of a step now / with these heads static. heads removed: the same without the heads at all, which",
        "no static head can beat. loss: rise right after the freeze; further training makes up for a part of it.",
        "",
        *recommendation(advice),
    ]
    return "\n".join(lines)


def recommendation(advice: Advice) -> Iterator[str]:
    """A verdict, then its reasons, a line each."""
    if not advice.steps_left:
        jump, rate, name = min((jump, at.rate, name) for at in advice.rates for name, jump in at.jumps.items())
        yield "No: the run has ended, and a freeze pays by the steps that follow it."
        yield f"For inference alone, {rate:.0%} by {name} changes the loss least ({jump:+.4f})."
        return
    faster = [at for at in advice.rates if at.speedup.mean - at.speedup.half_width > 1]
    if not faster:
        yield "No: a step does not become measurably faster on this machine at any of these rates."
        yield (
            f"Attention is {advice.attention_share:.0%} of a step at this length; the share grows with "
            "training.seq_len, and with it the gain."
        )
        return
    in_time = [at for at in faster if advice.break_even(at) < advice.steps_left]
    if not in_time:
        soonest = min(map(advice.break_even, faster))
        yield (
            f"No: calibration and fit are paid back after {soonest:,.0f} steps, and {advice.steps_left:,} are left. "
            "A lower saf.calibration_sequences makes them cheaper."
        )
        return
    if math.isnan(advice.slope):
        best = max(in_time, key=lambda at: at.speedup.mean)
        yield f"Maybe: {best.rate:.0%} makes a step {best.speedup.mean:.2f} times as fast."
        yield "The run has no log to tell what that time is worth in loss: compare in the same time (docs/study.md)."
        return

    # of the loss right after the freeze nothing is taken for granted to be repaired
    def net(at: RateMeasurement) -> float:
        return advice.gain(at) - min(at.jumps.values())

    best = max(in_time, key=net)
    selector = min(best.jumps, key=best.jumps.__getitem__)
    amounts = (
        f"at {best.rate:.0%} by {selector} the saved time is worth {advice.gain(best):.4f} nats a token at the present "
        f"slope, and the freeze costs {best.jumps[selector]:.4f} at once"
    )
    if net(best) > 0:
        yield f'Yes: saf.rate = {best.rate:g}, saf.selector = "{selector}".'
        yield f"Because {amounts}."
    else:
        yield f"Rather not: {amounts}."
        yield "Training repairs a part of that cost: a comparison in the same time may still end well (docs/study.md)."
