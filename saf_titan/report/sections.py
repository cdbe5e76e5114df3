"""The sections of a report about the run as a whole: from its log to HTML."""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean

from saf_titan.report import markup
from saf_titan.report.event import FreezeEvent
from saf_titan.report.figures import (
    circuit_attention_figure,
    circuit_update_figure,
    loss_figure,
    loss_near_freeze_figure,
)
from saf_titan.report.format import count, number_of, perplexity_text, short
from saf_titan.report.freeze_sections import loss_card, speed_card
from saf_titan.report.overview import overview
from saf_titan.report.rows import METRICS_FILE, ResumeRow, perplexity
from saf_titan.report.run_log import RunLog
from saf_titan.report.summary import final_validation, step_time

_MAX_LINES = 5
"""Number of damaged lines that are named one by one."""


def header(log: RunLog, events: list[FreezeEvent]) -> Iterator[str]:
    """Yield the top of the page: what was run, how far it came, what was frozen and why, the most important numbers."""
    yield "<header>"
    yield markup.heading(log.folder.resolve().name, 1)
    yield markup.paragraph(progress(log), "faint")
    yield '<div class="lead">'
    for text in overview(log, events):
        yield markup.paragraph(text)
    yield "</div>"
    for text in warnings(log):
        yield markup.paragraph(text, "note")
    yield markup.cards(_key_numbers(log, events))
    yield markup.facts(_run_facts(log))
    yield "</header>"


def progress(log: RunLog) -> str:
    """Return how far the run came, as one sentence."""
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


def warnings(log: RunLog) -> Iterator[str]:
    """Yield what is wrong or unknown in the log of a run, as sentences."""
    logged = [(row.step, row.loss) for row in log.train] + [(row.step, row.loss) for row in log.validations]
    broken = [step for step, loss in logged if not math.isfinite(loss)]
    if broken:
        losses = number_of(len(broken), "logged loss is not a number", "logged losses are not numbers")
        yield f"The run diverged: {losses}, the first one at step {min(broken):,}. Figures leave them out."
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
    due = ""
    if not log.freezes:
        is_ahead = not log.finished and log.last_step < log.config.freeze_step
        due = " (not reached yet)" if is_ahead else " (tried and undone)" if log.undone else " (has not happened)"
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
        numbers.append(loss_card(f"validation loss, step {validation.step:,}", validation.loss))
    if events:
        numbers.append(("static heads", f"{events[-1].freeze.heads:,}"))
        numbers.append(speed_card(step_time(log, events[0].freeze, events[-1].freeze)))
    return numbers


def loss(log: RunLog) -> Iterator[str]:
    """Yield the section of the loss: the curve of the whole run, and the part around the first freeze."""
    yield markup.heading("Loss")
    if not log.train:
        yield markup.paragraph("No step has been logged yet.", "note")
        return
    caption = "Training loss as logged (pale) and averaged over neighbouring points"
    if log.validations:
        caption += "; validation loss on the half of the held-out text that calibration never sees"
    if log.freezes:
        caption += f"; dashed: {'the freeze' if len(log.freezes) == 1 else 'the freezes'}"
    numbers = markup.table(
        ("step", "when", "validation loss", "perplexity"),
        (
            (f"{row.step:,}", row.phase.replace("_", " "), f"{row.loss:.4f}", short(perplexity(row.loss)))
            for row in log.validations
        ),
        text_columns=("when",),
    )
    figures = [markup.figure(loss_figure(log), f"{caption}.", numbers=numbers if log.validations else "")]
    near = loss_near_freeze_figure(log)
    if near:
        figures.append(markup.figure(near, f"The same around the freeze after step {log.freezes[0].step:,}."))
    yield markup.side_by_side(figures)


def accuracy(log: RunLog) -> Iterator[str]:
    """Yield the section of right answers on generated sequences, by length and pairs; nothing if none were measured."""
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
    """Yield the section of the circuits: their updates and their attention; nothing if neither was measured."""
    measured = (
        (
            circuit_update_figure(log),
            {"QK": "qk_update", "OV": "ov_update"},
            "How far one step moves the circuits: Frobenius norm of the change of W_Q^T W_K (QK, where to look) and of "
            "W_O W_V (OV, what to carry), divided by that of the circuit; thin: each layer, thick: their mean.",
        ),
        (
            circuit_attention_figure(log),
            {"entropy": "entropy", "sink": "sink_mass", "recent": "recent_mass"},
            "Attention of live heads on held-out text: entropy (1: uniform), share on the first token (sink) and on "
            "the 64 latest tokens (recent).",
        ),
    )
    figures = [
        markup.figure(svg, caption, numbers=_layer_means(log, columns)) for svg, columns, caption in measured if svg
    ]
    if figures:
        yield markup.heading("Circuits")
        yield markup.side_by_side(figures)


def _layer_means(log: RunLog, columns: Mapping[str, str]) -> str:
    """Return a table of the means over layers at each measurement; `columns` maps names to fields of `CircuitsRow`."""

    def mean(values: tuple[float, ...]) -> str:
        known = [value for value in values if math.isfinite(value)]
        return f"{fmean(known):.4g}" if known else ""

    return markup.table(
        ("step", *columns),
        ((f"{row.step:,}", *(mean(getattr(row, key)) for key in columns.values())) for row in log.circuits),
    )
