"""The sections of a report: from a run's log and its freezes to HTML."""

from collections.abc import Iterator

from saf_titan.report import markup
from saf_titan.report.event import FreezeEvent
from saf_titan.report.explorer import head_explorer
from saf_titan.report.figures import (
    circuit_attention_figure,
    circuit_update_figure,
    loss_figure,
    loss_near_freeze_figure,
    pattern_figures,
)
from saf_titan.report.format import count, loss_text, number_of, perplexity_text, seconds_text, short
from saf_titan.report.heads import maps_of_event
from saf_titan.report.overview import overview
from saf_titan.report.rows import METRICS_FILE, ResumeRow, perplexity
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import StepTime, final_validation, step_time, validation_at

_MAX_LINES = 5
"""Damaged lines that are named one by one."""


def header(log: RunLog, events: list[FreezeEvent]) -> Iterator[str]:
    """What was run, how far it came, what was frozen and why, and the most important numbers."""
    yield "<header>"
    yield markup.heading(log.folder.resolve().name, 1)
    yield markup.paragraph(progress(log), "faint")
    yield '<div class="lead">'
    for text in overview(log, events):
        yield markup.paragraph(text)
    yield "</div>"
    for text in _warnings(log):
        yield markup.paragraph(text, "note")
    yield markup.cards(_key_numbers(log, events))
    yield markup.facts(_run_facts(log))
    yield "</header>"


def progress(log: RunLog) -> str:
    """How far the run came, as one sentence."""
    state = "Finished" if log.finished else "Unfinished"
    if log.matched_seconds:
        used = f", {log.finish.seconds:,.1f} s used" if log.finish and log.finish.seconds > 0 else ""
        assert log.config is not None
        return (
            f"{state}: step {log.last_step:,}. The run was to train for {log.matched_seconds:g} s instead of a number "
            f"of steps{used}; the learning rate was planned for {log.config.training.steps:,} steps."
        )
    total = f" of {log.config.training.steps:,}" if log.config else ""
    return f"{state}: step {log.last_step:,}{total}."


def _warnings(log: RunLog) -> Iterator[str]:
    """What is wrong or unknown in the folder of the run."""
    if log.config is None:
        yield "config.toml is missing or damaged, so the settings of the run are not shown."
    if log.damaged:
        named = "; ".join(log.damaged[:_MAX_LINES])
        more = f"; and {len(log.damaged) - _MAX_LINES} more" if len(log.damaged) > _MAX_LINES else ""
        lines = number_of(len(log.damaged), "line is", "lines are")
        yield f"{METRICS_FILE}: {lines} damaged and left out ({named}{more})."
    if log.unknown:
        kinds = ", ".join(sorted({repr(row.kind) for row in log.unknown}))
        rows = number_of(len(log.unknown), "row has", "rows have")
        yield f"{METRICS_FILE}: {rows} a kind that this version does not know ({kinds}) and cannot show."


def _run_facts(log: RunLog) -> Iterator[tuple[str, str]]:
    config = log.config
    if config is not None:
        shape = config.shape
        yield (
            "model",
            f"{config.model.family} {config.model.flavor}: {shape.num_layers} layers x {shape.num_heads} heads, "
            f"width {shape.dim}, {config.model.position} positions",
        )
        yield "data", f"{config.data_source}, sequences of {config.training.seq_len:,} tokens"
        yield (
            "optimizer",
            f"{config.optimizer.name}, peak learning rate {config.optimizer.lr:g}, "
            f"{config.lr_scheduler.warmup_steps:,} warmup steps, {config.lr_scheduler.decay_type} decay",
        )
        for rule in config.circuit_groups:
            yield f"Circuit {rule.name}", f"learning rate x {rule.factor:g} ({rule.schedule})"
        yield "static heads", _freeze_intent(log)
    if log.world_size is not None:
        resumed = sum(isinstance(session, ResumeRow) for session in log.sessions)
        times = f", resumed {count(resumed, 'time')}" if resumed else ""
        yield "ranks", f"{log.world_size}{times}"


def _freeze_intent(log: RunLog) -> str:
    assert log.config is not None
    saf = log.config.saf
    if not saf.enable:
        return "none: this run keeps all heads live"
    due = "" if log.freezes else " (not reached yet)"
    return (
        f"{saf.rate:.0%} of all heads after step {log.config.freeze_step:,}{due}, "
        f"chosen by {saf.selector}, pattern {saf.content}"
    )


def _key_numbers(log: RunLog, events: list[FreezeEvent]) -> list[tuple[str, str]]:
    numbers = []
    if log.train:
        last = log.train[-1]
        numbers.append((f"training loss, step {last.step:,} ({perplexity_text(last.loss)})", f"{last.loss:.4f}"))
        if last.tokens > 0:
            numbers.append(("tokens seen", short(last.tokens)))
    validation = final_validation(log)
    if validation:
        numbers.append(_loss_card(f"validation loss, step {validation.step:,}", validation.loss))
    if events:
        numbers.append(("static heads", f"{events[-1].freeze.heads:,}"))
        numbers.append(_speed_card(step_time(log, events[0].freeze, events[-1].freeze)))
    return numbers


def _loss_card(name: str, loss: float) -> tuple[str, str]:
    return f"{name} ({perplexity_text(loss)})", f"{loss:.4f}"


def _speed_card(times: StepTime) -> tuple[str, str]:
    if times.problem or times.speedup is None:
        return "speed of a step after / before", "not measurable"
    speed = times.speedup
    return f"speed of a step after / before (spread {speed.low:.2f} to {speed.high:.2f})", f"{speed.median:.2f}x"


def loss(log: RunLog) -> Iterator[str]:
    """The loss curve, and the same around the first freeze."""
    yield markup.heading("Loss")
    if not log.train:
        yield markup.paragraph("No step has been logged yet.", "note")
        return
    caption = "Training loss as logged (pale) and averaged over neighbouring points"
    if log.validations:
        caption += "; validation loss on the half of the held-out text that calibration never sees"
    if log.freezes:
        caption += f"; dashed: {'the freeze' if len(log.freezes) == 1 else 'the freezes'}"
    figures = [markup.figure(loss_figure(log), f"{caption}.")]
    near = loss_near_freeze_figure(log)
    if near:
        figures.append(markup.figure(near, f"The same around the freeze after step {log.freezes[0].step:,}."))
    yield markup.side_by_side(figures)


def accuracy(log: RunLog) -> Iterator[str]:
    """The answers on generated sequences at each validation, by length and number of pairs; nothing without any."""
    if not log.accuracies:
        return
    yield markup.heading("Accuracy")
    yield markup.paragraph(
        "Answers on held-out sequences of the task: share of all queries that are answered rightly, and share of "
        "sequences with every answer right."
    )
    sets = sorted({(row.length, row.pairs) for row in log.accuracies})
    of_set = {(row.step, row.phase, row.length, row.pairs): row for row in log.accuracies}
    names = [f"{length:,} tokens{f', {pairs} pairs' if pairs else ''}" for length, pairs in sets]
    rows = []
    for step, phase in dict.fromkeys((row.step, row.phase) for row in log.accuracies):
        found = [of_set.get((step, phase, *cell)) for cell in sets]
        shares = [f"{row.accuracy:.3f} / {row.all_right:.3f}" if row is not None else "" for row in found]
        rows.append((f"{step:,}", phase.replace("_", " "), *shares))
    yield markup.table(("step", "when", *names), rows, text_columns=("when",))


def circuits(log: RunLog) -> Iterator[str]:
    """How far a step moves each circuit and where attention looks; nothing if neither was measured."""
    captions = (
        (
            circuit_update_figure(log),
            "How far one step moves the circuits: Frobenius norm of the change of W_Q^T W_K (QK, where to look) and of "
            "W_O W_V (OV, what to carry), divided by that of the circuit; thin: each layer, thick: their mean.",
        ),
        (
            circuit_attention_figure(log),
            "Attention of live heads on held-out text: entropy (1: uniform), share on the first token (sink) and on "
            "the 64 latest tokens (recent).",
        ),
    )
    figures = [markup.figure(svg, caption) for svg, caption in captions if svg]
    if figures:
        yield markup.heading("Circuits")
        yield markup.side_by_side(figures)


def freeze(log: RunLog, event: FreezeEvent, num_patterns: int) -> Iterator[str]:
    """One freeze: which heads were chosen and why, and what it did to the loss and the step time."""
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
        yield _loss_card("validation loss just before", before)
    if after is not None:
        change = f", {after - before:+.4f}" if before is not None else ""
        yield f"validation loss just after ({perplexity_text(after)}{change})", f"{after:.4f}"
    if end and end.step > event.step:
        yield _loss_card(f"validation loss, step {end.step:,}", end.loss)
    if event.freeze.held_out_losses:
        first, second = event.freeze.held_out_losses
        yield f"loss on the calibration sequences, before {loss_text(first)}", f"{second:.4f}"
    times = step_time(log, event.freeze)
    if times.spreads:
        for name, spread in zip(("before", "after"), times.spreads, strict=True):
            middle = f"middle half of the intervals: {spread.low:.3g} to {spread.high:.3g} s"
            yield f"step time {name}, median ({middle})", seconds_text(spread.median)
    yield _speed_card(times)
    if event.freeze.seconds:
        parts = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in event.freeze.seconds.items())
        yield f"time that the freeze took ({parts})", seconds_text(sum(event.freeze.seconds.values()))


def undone(log: RunLog) -> Iterator[str]:
    """The freezes that were tried and undone; nothing if there are none."""
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
