"""The sections of a report, from a run's log and its freezes to HTML."""

from collections.abc import Iterator

from saf_titan.report import markup
from saf_titan.report.event import FreezeEvent
from saf_titan.report.figures import loss_figure, pattern_figure, score_figure
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import final_validation, step_time, validation_at


def header(log: RunLog, events: list[FreezeEvent]) -> Iterator[str]:
    """What was run, how far it came, and the numbers that matter."""
    total = log.config.training.steps if log.config else None
    progress = f"step {log.last_step:,}" + (f" of {total:,}" if total else "")
    yield "<header>"
    yield markup.heading(log.folder.resolve().name, 1)
    yield markup.paragraph(f"{'Finished' if log.finished else 'Unfinished'}: {progress}.", "faint")
    yield markup.facts(_run_facts(log))
    yield markup.cards(_key_numbers(log, events))
    yield "</header>"


def _run_facts(log: RunLog) -> Iterator[tuple[str, str]]:
    config = log.config
    if config is None:
        yield "configuration", "config.toml is missing or damaged"
    else:
        shape = config.shape
        yield (
            "model",
            f"{config.model.family} {config.model.flavor}: {shape.num_layers} layers x {shape.num_heads} heads, "
            f"width {shape.dim}, {config.model.position} positions",
        )
        yield "data", f"{config.data.path}, sequences of {config.training.seq_len:,} tokens"
        yield (
            "optimizer",
            f"{config.optimizer.name}, peak learning rate {config.optimizer.lr:g}, "
            f"{config.lr_scheduler.warmup_steps:,} warmup steps, {config.lr_scheduler.decay_type} decay",
        )
        if config.scales_qk:
            yield "QK circuit", f"learning rate x {config.circuits.qk_lr_ratio:g} ({config.circuits.qk_lr_schedule})"
        yield "static heads", _freeze_intent(log)
    if log.world_size is not None:
        resumed = sum(session.resumed for session in log.sessions)
        times = f", resumed {resumed} time{'s' if resumed > 1 else ''}" if resumed else ""
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
        numbers.append(("training loss, last logged", f"{last.loss:.4f}"))
        if last.tokens is not None:
            numbers.append(("tokens", _magnitude(last.tokens)))
    validation = final_validation(log)
    if validation:
        numbers.append((f"validation loss, step {validation.step:,}", f"{validation.loss:.4f}"))
    if events and events[-1].plan:
        numbers.append(("static heads", str(len(events[-1].plan.heads))))
        times = step_time(log, events[-1].freeze)
        if times:
            numbers.append(("step time, before / after", f"{times.ratio:.3f}x"))
    return numbers


def loss(log: RunLog) -> Iterator[str]:
    """The loss curve."""
    yield markup.heading("Loss")
    if not log.train:
        yield markup.paragraph("No step has been logged yet.", "note")
        return
    caption = "Training loss as logged (pale) and averaged over neighbouring points"
    if log.validations:
        caption += ", validation loss on the held-out half that calibration never sees"
    if log.freezes:
        caption += "; the dashed line is the freeze"
    yield markup.picture(loss_figure(log), caption + ".")


def freeze(log: RunLog, event: FreezeEvent, num_patterns: int) -> Iterator[str]:
    """One freeze: what was decided, on which grounds, and what it did to loss and step time."""
    yield markup.heading(f"Freeze after step {event.step:,}")
    if event.problem:
        yield markup.paragraph(event.problem, "note")
    if event.plan:
        record = event.plan.record
        yield markup.paragraph(
            f"{len(event.new_heads)} heads became static, chosen by {event.plan.selector} on {record.num_sequences} "
            f"held-out sequences of {record.seq_len:,} tokens. Their attention no longer depends on the input: each "
            "mixes values by a fixed pattern, and its queries, keys and scores are not computed any more."
        )
    yield markup.cards(list(_effects(log, event)))
    scores = score_figure(event)
    if scores:
        yield markup.heading("Scores", 3)
        yield markup.picture(scores, "Score of every head before the freeze; the lower, the less its attention varies.")
    patterns = pattern_figure(event, num_patterns)
    if patterns:
        yield markup.heading("Patterns", 3)
        yield markup.picture(
            patterns,
            "Mean attention of some heads (above) and the pattern that replaces it (below), pooled to blocks; "
            "queries run downwards, keys to the right, brighter is more. KL: distance of the two in nats per row.",
        )
    yield from _plan_tables(event)


def _effects(log: RunLog, event: FreezeEvent) -> Iterator[tuple[str, str]]:
    before = validation_at(log, "before_freeze", event.step)
    after = validation_at(log, "after_freeze", event.step)
    end = final_validation(log)
    if before is not None:
        yield "validation loss just before", f"{before:.4f}"
    if after is not None:
        change = f" ({after - before:+.4f})" if before is not None else ""
        yield f"validation loss just after{change}", f"{after:.4f}"
    if end and end.step > event.step:
        yield f"validation loss, step {end.step:,}", f"{end.loss:.4f}"
    times = step_time(log, event.freeze)
    if times:
        yield "seconds a step, before", f"{times.before:.3g}"
        yield f"seconds a step, after ({times.ratio:.3f}x as fast)", f"{times.after:.3g}"
    if event.freeze.seconds:
        parts = ", ".join(f"{name} {seconds:.2g}" for name, seconds in event.freeze.seconds.items())
        yield f"seconds for the freeze ({parts})", f"{sum(event.freeze.seconds.values()):.3g}"


def _plan_tables(event: FreezeEvent) -> Iterator[str]:
    if event.plan is None:
        return
    yield markup.heading("Plan", 3)
    yield markup.table(
        ("rank", "layer", "head", "score", "fit KL (nats per row)"),
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
        ("layer", "head", "score", "fit KL (nats per row)", "reason"),
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


def _magnitude(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
