"""The sections of a report about its freezes: what became static and why, what it did, and what was undone."""

import math
from collections.abc import Iterator

from saf_titan.report import markup
from saf_titan.report.event import FreezeEvent
from saf_titan.report.explorer import head_explorer
from saf_titan.report.figures import pattern_figures
from saf_titan.report.format import count, loss_text, perplexity_text, seconds_text
from saf_titan.report.heads import maps_of_event
from saf_titan.report.rows import perplexity
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import StepTime, final_validation, step_time, validation_at


def loss_card(name: str, loss: float) -> tuple[str, str]:
    """Return a loss with its perplexity as a card for `markup.cards`."""
    return f"{name} ({perplexity_text(loss)})", f"{loss:.4f}"


def speed_card(times: StepTime) -> tuple[str, str]:
    """Return the change of the step time as a card for `markup.cards`."""
    if times.problem or times.speedup is None:
        return "speed of a step after / before", "not measurable"
    speed = times.speedup
    return f"speed of a step after / before (spread {speed.low:.2f} to {speed.high:.2f})", f"{speed.median:.2f}x"


def freeze(log: RunLog, event: FreezeEvent, num_patterns: int) -> Iterator[str]:
    """Yield the section of one freeze: which heads were chosen and why, and its effect on loss and step time."""
    yield markup.heading(f"Freeze after step {event.step:,}")
    if event.problem:
        yield markup.paragraph(event.problem, "note")
    if event.plan:
        record = event.plan.record
        yield markup.paragraph(
            f"{count(len(event.new_heads), 'head')} became static, chosen by {event.plan.selector} on "
            f"{count(record.num_sequences, 'held-out sequence')} of {record.seq_len:,} tokens. The attention of a "
            "static head does not depend on the text: the head mixes values by a fixed pattern, and its queries, keys "
            "and scores are not computed any more."
        )
    yield markup.cards(list(_effects(log, event)))
    problem = step_time(log, event.freeze).problem
    if problem:
        yield markup.paragraph(f"The change of the step time is not measurable, because {problem}.", "faint")
    maps = maps_of_event(event)
    if maps:
        yield markup.heading("Heads", 3)
        yield markup.paragraph(
            "Every head of the model as it was measured before the freeze. Heads with a low score were chosen first."
        )
        yield head_explorer(maps, f"heads before the freeze after step {event.step:,}")
    patterns = pattern_figures(event, num_patterns)
    if patterns:
        yield markup.heading("Patterns", 3)
        yield markup.paragraph(
            "Each map shows how much attention a query (from top to bottom) gives to each key (from left to right), in "
            "blocks of neighbouring tokens; brighter is more. KL is the distance between the two maps, in nats per row."
        )
        new = "fitted pattern" if event.plan and event.plan.content == "mean" else "pattern"
        yield markup.gallery(
            (
                f"layer {pair.head.layer}, head {pair.head.head}",
                (
                    (pair.mean_svg, "mean attention before"),
                    (pair.pattern_svg, f"{new} after, KL {pair.head.fit_kl:.3f}"),
                ),
            )
            for pair in patterns
        )
    yield from _plan_tables(event)


def _effects(log: RunLog, event: FreezeEvent) -> Iterator[tuple[str, str]]:
    before = validation_at(log, "before_freeze", event.step)
    after = validation_at(log, "after_freeze", event.step)
    end = final_validation(log)
    if before is not None:
        yield loss_card("validation loss just before", before)
    if after is not None:
        change = f", {after - before:+.4f}" if before is not None else ""
        yield f"validation loss just after ({perplexity_text(after)}{change})", f"{after:.4f}"
    if end and end.step > event.step:
        yield loss_card(f"validation loss, step {end.step:,}", end.loss)
    if event.freeze.held_out_losses:
        first, second = event.freeze.held_out_losses
        yield f"loss on the calibration sequences, before {loss_text(first)}", f"{second:.4f}"
    times = step_time(log, event.freeze)
    if times.spreads:
        for name, spread in zip(("before", "after"), times.spreads, strict=True):
            middle = f"middle half of the intervals: {spread.low:.3g} to {spread.high:.3g} s"
            yield f"step time {name}, median ({middle})", seconds_text(spread.median)
    yield speed_card(times)
    if event.freeze.seconds:
        parts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in event.freeze.seconds.items())
        yield f"time that the freeze took ({parts})", seconds_text(sum(event.freeze.seconds.values()))


def undone(log: RunLog) -> Iterator[str]:
    """Yield the section of the freezes that were tried and undone; nothing if there are none."""
    if not log.undone:
        return
    yield markup.heading("Undone freezes")
    budget = f" (saf.loss_budget = {log.config.saf.loss_budget:.2%} for all freezes)" if log.config else ""
    yield markup.paragraph(
        "These freezes were tried and taken back at once, because the loss on the calibration sequences rose by more "
        f"than was left of the budget{budget}. The model went on as if they had not been tried."
    )
    rows = []
    for row in log.undone:
        before, after = ("", "")
        reason = "not recorded"
        if row.held_out_losses:
            before, after = map(loss_text, row.held_out_losses)
            rise = row.held_out_losses[1] - row.held_out_losses[0]
            reason = f"the loss rose by {rise:.4f}, the perplexity by {perplexity(rise) - 1:.2%}"
            if not math.isfinite(rise):
                reason = "the loss was not a number"
        heads = f"{row.heads}" if row.new_heads is None else f"{row.new_heads} more, {row.heads} in all"
        rows.append((f"{row.step:,}", heads, before, after, reason))
    columns = ("after step", "heads", "loss before", "loss after", "why undone")
    yield markup.table(columns, rows, text_columns=("why undone",))


def _plan_tables(event: FreezeEvent) -> Iterator[str]:
    if event.plan is None:
        return
    yield markup.heading("Plan", 3)
    yield markup.table(
        ("rank", "layer", "head", "score", "fit KL (nats)"),
        (
            (str(head.rank), str(head.layer), str(head.head), f"{head.score:.3e}", f"{head.fit_kl:.4f}")
            for head in event.new_heads
        ),
    )
    if not event.plan.skipped:
        yield markup.paragraph("No candidate was skipped.", "faint")
        return
    yield markup.heading("Skipped candidates", 3)
    yield markup.table(
        ("layer", "head", "score", "fit KL (nats)", "reason"),
        (
            (
                str(head.layer),
                str(head.head),
                f"{head.score:.3e}",
                "" if head.fit_kl is None else f"{head.fit_kl:.4f}",
                head.reason,
            )
            for head in event.plan.skipped
        ),
        text_columns=("reason",),
    )
