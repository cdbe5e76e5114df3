"""The page that shows several runs side by side, for studies and for `python -m saf_titan.analysis report RUN RUN`.

Runs come in groups: an arm of a study with one run for each seed, or a single run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from saf_titan.heads.names import Head
from saf_titan.report import markup
from saf_titan.report.compare_figures import difference_figure, head_map, look, loss_figure
from saf_titan.report.event import read_events
from saf_titan.report.format import count, loss_text, seconds_text, short
from saf_titan.report.group import Group
from saf_titan.report.run_log import RunLog, read_run
from saf_titan.report.sections import progress, warnings
from saf_titan.report.summary import final_validation, step_time
from saf_titan.report.write import write_whole

COMPARISON_FILE = "comparison.html"


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of several runs, the first one being what others are compared with; returns its path.

    Raises:
        ValueError: a folder holds no run, or the page cannot be written.
    """
    logs = [read_run(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    # runs of the same name are told apart by their folders
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    groups = [Group(name=name, logs=(log,)) for name, log in zip(names, logs, strict=True)]
    lead = [
        markup.facts((name, progress(log)) for name, log in zip(names, logs, strict=True)),
        markup.paragraph(f"Differences are to the first run, {names[0]}."),
    ]
    write_whole(out, comparison("Comparison of runs", groups, lead=lead))
    return out


def comparison(title: str, groups: Sequence[Group], *, lead: Iterable[str] = ()) -> str:
    """Return the page as text.

    Args:
        groups: what is compared; the first group is the baseline.
        lead: HTML that comes first, under the title.
    """
    body = [
        "<header>",
        markup.heading(title, 1),
        *lead,
        *_problems(groups),
        "</header>",
        *_settings(groups),
        *_loss(groups),
        *_heads(groups),
        *_cost(groups),
        markup.footer(),
    ]
    return markup.page(title, body)


def _problems(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a note for everything that is damaged or missing in the folder of a run, so that the page says so."""
    for group in groups:
        for log in group.logs:
            name = group.name if len(group.logs) == 1 else f"{group.name}, {log.folder.name}"
            for text in (*warnings(log), *(event.problem for event in read_events(log) if event.problem)):
                yield markup.paragraph(f"{name}: {text}", "note")


def _settings(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the section of the settings in which the groups differ."""
    configs = [next((log.config for log in group.logs if log.config), None) for group in groups]
    known = [config for config in configs if config is not None]
    rows = []
    for section in dataclasses.fields(known[0]) if len(known) > 1 else ():
        values = [getattr(config, section.name) if config else None for config in configs]
        # seeds and folders always differ
        if section.name in ("dump_folder", "debug") or not dataclasses.is_dataclass(getattr(known[0], section.name)):
            continue
        for item in dataclasses.fields(getattr(known[0], section.name)):
            cells = [_setting(getattr(value, item.name)) if value is not None else "" for value in values]
            if len(set(cells)) > 1 and "seed" not in item.name and item.name != "initial_load_path":
                rows.append([f"{section.name}.{item.name}", *cells])
    yield markup.heading("Settings that differ")
    if len(known) < 2:
        yield markup.paragraph("Not known: they need config.toml of at least two runs.", "faint")
        return
    if not rows:
        yield markup.paragraph("None, seeds and folders apart.", "faint")
        return
    yield markup.table(["key", *(group.name for group in groups)], rows, text_columns=("key",))


def _setting(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _loss(groups: Sequence[Group]) -> Iterator[str]:
    yield markup.heading("Loss")
    drawn = [group for group in groups if any(log.train for log in group.logs)]
    if not drawn:
        yield markup.paragraph("No step has been logged yet.", "note")
        return
    legend = [(group.name, *look(number)) for number, group in enumerate(drawn)]
    many = " A line is the mean over the seeds." if any(len(group.logs) > 1 for group in groups) else ""
    figures = [
        markup.figure(
            loss_figure(drawn, "tokens"),
            f"Training loss over tokens, averaged over neighbouring points; dots: held-out loss at the end.{many}",
            legend=legend,
        )
    ]
    over_seconds = loss_figure(drawn, "seconds")
    if over_seconds:
        caption = f"The same over wall time since the first step shown; calibration and fit count.{many}"
        figures.append(markup.figure(over_seconds, caption, legend=legend))
    difference = difference_figure(drawn)
    if difference:
        caption = (
            f"Training loss minus that of {drawn[0].name} at the same step and seed, averaged over neighbouring "
            "points: the noise of the batches, which all share, cancels."
        )
        figures.append(markup.figure(difference, caption, legend=legend[1:]))
    yield markup.side_by_side(figures)
    rows = []
    for group in groups:
        finals = [row.loss for log in group.logs if (row := final_validation(log)) is not None]
        losses = ", ".join(f"{loss:.4f}" for loss in finals)
        rows.append([group.name, loss_text(fmean(finals)) if finals else "", losses if len(finals) > 1 else ""])
    if any(row[1] for row in rows):
        yield markup.heading("Last held-out loss", 3)
        yield markup.table(["run", "mean", "of each seed"], rows, text_columns=("run",))


def static_slots(log: RunLog) -> tuple[set[Head], tuple[int, int]] | None:
    """Return the static heads of a run at its end, and (layers, heads) of its model; None if they are not known."""
    events = read_events(log)
    if not events or events[-1].plan is None or log.config is None:
        return None
    shape = log.config.shape
    return {(head.layer, head.head) for head in events[-1].plan.heads}, (shape.num_layers, shape.num_heads)


def overlap(first: set[Head], second: set[Head]) -> float:
    """Return the Jaccard index of two sets of heads: heads in both / heads in any; 1 for two empty sets."""
    return len(first & second) / len(first | second) if first | second else 1.0


def _heads(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the section of which heads each group froze, and how far the choices agree."""
    chosen = {group.name: [static_slots(log) for log in group.logs] for group in groups}
    found = {name: [slots for slots in runs if slots is not None] for name, runs in chosen.items()}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        return
    yield markup.heading("Static heads")
    yield markup.paragraph(
        "Layers from top to bottom, heads from left to right; the darker a head, the more runs of the group froze it."
    )
    yield markup.gallery(
        (name, [(head_map([heads for heads, _ in runs], runs[0][1]), _head_caption(runs))])
        for name, runs in found.items()
    )
    rows = []
    for name, runs in found.items():
        cells = []
        for other in found:
            if other == name:
                pairs = [overlap(a[0], b[0]) for i, a in enumerate(runs) for b in runs[i + 1 :]]
            else:
                pairs = [overlap(a[0], b[0]) for a, b in zip(chosen[name], chosen[other], strict=False) if a and b]
            cells.append(f"{fmean(pairs):.2f}" if pairs else "")
        rows.append([name, *cells])
    if len(rows) > 1 or rows[0][1]:
        yield markup.heading("Overlap", 3)
        yield markup.paragraph(
            "Heads that both chose / heads that any of them chose, 1 for the same heads: between groups, mean over "
            "seeds; on the diagonal, between the seeds of a group."
        )
        yield markup.table(["run", *found], rows, text_columns=("run",))


def _head_caption(runs: Sequence[tuple[set[Head], tuple[int, int]]]) -> str:
    text = count(len(runs[0][0]), "head")
    return f"{text} in each of {len(runs)} runs" if len(runs) > 1 else text


def _cost(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the section of time and memory: stages of the freezes, speed of a step before and after, peak memory."""
    columns = [
        "run",
        "calibrate",
        "fit and the rest",
        "steps/s before",
        "steps/s after",
        "speed",
        "peak memory",
        "total",
    ]
    yield markup.heading("Time and memory")
    yield markup.table(columns, [_cost_row(group) for group in groups], text_columns=("run",))
    yield markup.paragraph(
        "Means over runs; speeds are medians over the logged intervals, and the ratio is shown where it can be told "
        "from the spread of the step times.",
        "faint",
    )


def _cost_row(group: Group) -> list[str]:
    calibrate, rest, before, after, speed = [], [], [], [], []
    for log, whole in zip(group.logs, group.with_parents, strict=True):
        stages = [row.seconds for row in log.freezes]
        if stages:
            calibrate.append(sum(stage.get("calibrate", 0.0) for stage in stages))
            rest.append(sum(sum(stage.values()) for stage in stages) - calibrate[-1])
            times = step_time(whole, log.freezes[0], log.freezes[-1])
            before += [1 / median(times.before)] if times.before else []
            after += [1 / median(times.after)] if times.after else []
            speed += [times.speedup.median] if times.speedup and not times.problem else []
        else:
            seconds = [row.step_seconds for row in log.train if row.step_seconds > 0]
            before += [1 / median(seconds)] if seconds else []
    memory = [row.peak_memory_gib for log in group.logs for row in log.train if row.peak_memory_gib > 0]
    total = [log.finish.seconds for log in group.logs if log.finish and log.finish.seconds > 0]

    return [
        group.name,
        seconds_text(fmean(calibrate)) if calibrate else "",
        seconds_text(fmean(rest)) if rest else "",
        short(fmean(before)) if before else "",
        short(fmean(after)) if after else "",
        f"{fmean(speed):.2f}x" if speed else "",
        f"{max(memory):.2f} GiB" if memory else "",
        seconds_text(fmean(total)) if total else "",
    ]
