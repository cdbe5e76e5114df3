"""The first sentences of a report: what was frozen, when, why those heads, what it cost and what it gained."""

from collections.abc import Iterator

from saf_titan.heads.counts import head_count
from saf_titan.report.event import FreezeEvent
from saf_titan.report.format import count, loss_text, number_of, seconds_text
from saf_titan.report.rows import perplexity
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import step_time, validation_at
from saf_titan.saf.fit.registry import CONTENTS
from saf_titan.saf.select.registry import SELECTORS


def overview(log: RunLog, events: list[FreezeEvent]) -> Iterator[str]:
    """Yield paragraphs of plain English about a run."""
    if not events:
        yield _without_freeze(log)
    else:
        yield _what_and_why(log, events)
        shortfall = _shortfall(log, events[-1])
        if shortfall:
            yield shortfall
        cost = _cost(log, events)
        if cost:
            yield cost
        yield _gain(log, events)
    if log.undone:
        tried = number_of(len(log.undone), "freeze was", "freezes were")
        yield f"{tried} tried and undone, because the loss rose by more than the budget allows."


def _without_freeze(log: RunLog) -> str:
    if log.config is None or not log.config.saf.enable:
        return "No attention head was frozen in this run."
    if log.finished:
        return "No attention head was frozen, although freezing was switched on."
    if log.last_step < log.config.freeze_step:
        return f"No attention head has been frozen yet: the first freeze is due after step {log.config.freeze_step:,}."
    return "No attention head has been frozen yet."


def _what_and_why(log: RunLog, events: list[FreezeEvent]) -> str:
    first, last = events[0], events[-1]
    static = last.freeze.heads
    when = (
        f"After step {first.step:,},"
        if len(events) == 1
        else f"In {len(events)} freezes, after steps {first.step:,} to {last.step:,},"
    )
    which = count(static, "attention head")
    if last.num_model_heads:
        which = f"{static:,} of the {last.num_model_heads:,} attention heads ({static / last.num_model_heads:.0%})"
    text = f"{when} {which} {'was' if static == 1 else 'were'} frozen (made static)."
    plan = last.plan
    if plan is None:
        return text
    selector, content = SELECTORS.get(plan.selector), CONTENTS.get(plan.content)
    # a plan of a later version may name what this version does not know
    reason = selector.reason if selector else f'their score by the selector "{plan.selector}" was lowest'
    replacement = content.replacement if content else f'a fixed pattern (content "{plan.content}")'
    return (
        f"{text} Until then, the attention of these heads was computed from the text; since then, it is replaced by "
        f"{replacement}. These heads were chosen because {reason} (selector {plan.selector}, measured on "
        f"{count(plan.record.num_sequences, 'held-out sequence')} of {plan.record.seq_len:,} tokens)."
    )


def _shortfall(log: RunLog, last: FreezeEvent) -> str:
    """Return a sentence if fewer heads are static than the run asked for; empty if not, or if it is not known."""
    if log.config is None or last.num_model_heads is None or last.plan is None:
        return ""
    saf = log.config.saf
    wanted = head_count(last.num_model_heads, saf.rate, saf.rounding)
    # with a budget or a ramp, fewer heads than the rate says may be static
    if saf.schedule != "once" or last.freeze.heads >= wanted:
        return ""
    text = f"The run asked for {wanted:,} static heads ({saf.rate:.0%}) and got {last.freeze.heads:,}"
    if not last.plan.skipped:
        return f"{text}."
    skipped = number_of(len(last.plan.skipped), "candidate was skipped", "candidates were skipped")
    return f'{text}: {skipped}, for the reasons in the table "Skipped candidates".'


def _cost(log: RunLog, events: list[FreezeEvent]) -> str:
    """Return what the freezes did to the validation loss, and how long they took; empty if neither is known."""
    pairs = [
        (before, after)
        for event in events
        if (before := validation_at(log, "before_freeze", event.step)) is not None
        and (after := validation_at(log, "after_freeze", event.step)) is not None
    ]
    seconds = sum(sum(event.freeze.seconds.values()) for event in events)
    parts = []
    if len(pairs) == len(events) == 1:
        ((before, after),) = pairs
        factor = perplexity(after - before) - 1
        parts.append(
            f"replacing their attention changed the validation loss from {loss_text(before)} to {loss_text(after)}, "
            f"which is {factor:+.2%} in perplexity"
        )
    elif pairs:
        total = sum(after - before for before, after in pairs)
        parts.append(
            f"the changes of the validation loss at the freezes add up to {total:+.4f}, which is "
            f"{perplexity(total) - 1:+.2%} in perplexity"
        )
    if seconds > 0:
        parts.append(f"the {'freeze' if len(events) == 1 else 'freezes'} took {seconds_text(seconds)}")
    return f"Cost: {', and '.join(parts)}." if parts else ""


def _gain(log: RunLog, events: list[FreezeEvent]) -> str:
    times = step_time(log, events[0].freeze, events[-1].freeze)
    if times.spreads is None or times.speedup is None:
        return f"Gain: the change of the step time is not measurable in this run, because {times.problem}."
    before, after = times.spreads
    if times.problem:
        return (
            f"Gain: not measurable in this run. A step took {seconds_text(before.median)} before and "
            f"{seconds_text(after.median)} after (medians), but {times.problem}."
        )
    speed = times.speedup
    verdict = "faster" if speed.median > 1 else "slower"
    return (
        f"{'Gain' if speed.median > 1 else 'No gain'}: steps became {verdict}, from {seconds_text(before.median)} to "
        f"{seconds_text(after.median)} (medians), which is {speed.median:.2f} times the speed (spread {speed.low:.2f} "
        f"to {speed.high:.2f})."
    )
