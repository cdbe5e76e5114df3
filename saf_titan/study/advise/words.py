"""Writes what was measured as text, and the advice: whether freezing pays, and at which rate.

The rule: consider the rates at which a step is surely faster and the freeze pays for itself before the run ends. Of
these, take the highest rate that raises the loss by no more than a limit right after the freeze. The user gives the
limit; by default it is what the saved time is worth: the fall of the loss, at its present slope, in the updates that
fit into the saved time. Further training takes back a part of the rise, and how large that part is cannot be known
before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from saf_titan.analysis.tables import text_table
from saf_titan.report.format import count, loss_text, seconds_text
from saf_titan.study.advise.measure import CEILING, Measured

DEFAULT_RISE = 0.01
"""Limit of the rise of the loss, in nats per token, if the slope of the loss is not known."""
MIN_GAIN = 0.02
"""Share by which a step must become faster for a freeze to be worthwhile."""


def break_even_updates(measured: Measured, rate: float) -> float:
    """Return after how many updates of the run, on one rank, a freeze at `rate` has saved the seconds that it took."""
    saved = measured.micro_batches * (measured.seconds[0.0].median - measured.seconds[rate].median)
    return sum(measured.freeze_seconds.values()) / saved if saved > 0 else math.inf


def gentlest(measured: Measured, rate: float) -> tuple[str, float]:
    """Return the selector whose freeze at `rate` raises the loss least, and the rise in nats per token."""
    rises = {selector: by_rate[rate].nats for selector, by_rate in measured.rises.items()}
    return min(rises.items(), key=lambda item: item[1])


def worth(measured: Measured, rate: float) -> float:
    """Return what the time saved at `rate` is worth, in nats per token at the present slope of the loss.

    NaN if the slope is not known.
    """
    further = measured.steps_left - min(break_even_updates(measured, rate), measured.steps_left)
    return max(0.0, measured.slope * further * (measured.speedups[rate].median - 1))


def advice(measured: Measured, *, max_rise: float | None = None) -> str:
    """Return the recommendation as a paragraph, with its reasons.

    max_rise: how far the loss may rise right after the freeze, in nats per token; None for the worth of the saved time.
    """
    is_known = max_rise is None and math.isfinite(measured.slope)

    def limit(rate: float) -> float:
        return worth(measured, rate) if is_known else DEFAULT_RISE if max_rise is None else max_rise

    source = "what the saved time is worth at the present slope of the training loss" if is_known else "the limit"
    rates = sorted(rate for rate in measured.seconds if 0 < rate < CEILING)
    ceiling = measured.speedups[CEILING].median
    faster = [r for r in rates if measured.speedups[r].low > 1 and measured.speedups[r].median >= 1 + MIN_GAIN]
    if not faster:
        return (
            f"No. No rate makes a step faster by {MIN_GAIN:.0%} or more for sure: attention is "
            f"{measured.attention_share:.0%} of a step, and with every head static a step would be {ceiling:.2f} times "
            "as fast. Freezing pays for longer sequences, where attention is a larger share."
        )
    if measured.steps_left == 0:
        return (
            f"Not for this run: it has no update left to save time in. Trained further, its steps would be up to "
            f"{measured.speedups[faster[-1]].median:.2f} times as fast; generation from the frozen model needs less "
            "memory and time too."
        )
    paying = [r for r in faster if break_even_updates(measured, r) < measured.steps_left]
    if not paying:
        needed = min(break_even_updates(measured, r) for r in faster)
        return (
            f"No. The freeze takes {seconds_text(sum(measured.freeze_seconds.values()))}, which {needed:,.0f} updates "
            f"would save, and {measured.steps_left:,} are left. Freeze earlier, or calibrate on fewer sequences."
        )
    gentle = [r for r in paying if gentlest(measured, r)[1] <= limit(r)]
    if not gentle:
        selector, rise = gentlest(measured, paying[0])
        return (
            f"Not yet. Even {paying[0]:.0%} of the heads, chosen by {selector}, raise the loss by {rise:.4f} nats "
            f"right away, more than {limit(paying[0]):.2g}, {source}. Try fewer heads, a later step, or "
            "saf.compensate; a study tells what further training takes back."
        )
    rate = gentle[-1]
    selector, rise = gentlest(measured, rate)
    saved = 1 - measured.seconds[rate].median / measured.seconds[0.0].median
    return (
        f'Yes: saf.rate = {rate:g}, saf.selector = "{selector}". A step becomes {measured.speedups[rate].median:.2f} '
        f"times as fast ({saved:.0%} less time for the {measured.steps_left:,} updates that are left), the freeze pays "
        f"for itself after {_updates(break_even_updates(measured, rate))}, and the loss changes by {rise:+.4f} nats "
        f"right away, of which further training takes back a part. It is the highest of the rates that stay below "
        f"{source} ({limit(rate):.2g} nats here)."
    )


def lines(measured: Measured, *, max_rise: float | None = None, is_terminal: bool = False) -> Iterator[str]:
    """Yield lines with everything that was measured, and the advice as the last one.

    max_rise: see `advice`; is_terminal: whether the headings of the tables are bold.
    """
    rates = sorted(measured.seconds)
    yield f"{measured.checkpoint}: step {measured.step:,}, {measured.steps_left:,} updates left"
    yield measured.setting
    yield ""
    rows = [
        (
            "all heads" if rate == CEILING else f"{rate:.0%} static",
            f"{measured.seconds[rate].median:.4g}",
            f"{measured.speedups[rate].median:.2f}x",
            f"{measured.speedups[rate].low:.2f} to {measured.speedups[rate].high:.2f}",
            _updates(break_even_updates(measured, rate)) if 0 < rate < CEILING else "",
        )
        for rate in rates
    ]
    yield from text_table(
        ("step of a batch", "seconds", "speed", "middle half", "pays after"), rows, is_terminal=is_terminal
    )
    yield f"attention (scores, softmax, values; no projections), all heads live: {measured.attention_share:.0%} of it"
    stages = ", ".join(f"{stage} {seconds_text(seconds)}" for stage, seconds in measured.freeze_seconds.items())
    yield f"a freeze takes: {stages}"
    yield ""
    yield f"loss on held-out sequences, all heads live: {loss_text(measured.loss)}; change right after freezing:"
    shown = [rate for rate in rates if 0 < rate < CEILING]
    table = [
        (selector, *(f"{by_rate[rate].nats:+.4f} ({by_rate[rate].heads} heads)" for rate in shown))
        for selector, by_rate in measured.rises.items()
    ]
    yield from text_table(("chosen by", *(f"{rate:.0%}" for rate in shown)), table, is_terminal=is_terminal)
    yield ""
    yield advice(measured, max_rise=max_rise)


def _updates(number: float) -> str:
    return "never" if math.isinf(number) else count(max(1, math.ceil(number - 1e-9)), "update")
