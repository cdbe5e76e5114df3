"""Describes a study before it is trained, for ``--dry-run``: runs, tokens, time and disk space."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from statistics import median

# first: it must precede every other torchtitan module
from saf_titan.analysis.tables import text_table

from saf_titan import compat  # noqa: F401  # isort: skip

import torch

from saf_titan.config import ConfigError, RunConfig
from saf_titan.config.own_sections import ModelSection
from saf_titan.config.shapes import ModelShape
from saf_titan.data.checks import inspect_data
from saf_titan.heads.counts import head_count
from saf_titan.models import model_spec
from saf_titan.report.format import count, short
from saf_titan.study.parents import missing_weights, parent_problems
from saf_titan.study.plan import StudyPlan
from saf_titan.study.progress import is_done, log_of
from saf_titan.study.runs import StudyRun
from saf_titan.study.work import known

_GIB = 1024**3
UNKNOWN = "unknown"


def describe(plan: StudyPlan) -> str:
    """Return the description of a study. It names data and weights that are still missing. No file is written.

    Raises:
        ConfigError: an arm cannot start from the checkpoint that it is given, for example one of another model.
    """
    if problems := parent_problems(plan):
        raise ConfigError(problems)
    study, names = plan.study, list(dict.fromkeys(run.name for run in plan.runs))
    configs = {run: plan.config(run, known) for run in plan.runs}
    rows = [["run", "what", "seeds", "steps", "tokens", "time", "checkpoint", "done"]]
    total_tokens, total_seconds, total_bytes = 0, 0.0, 0
    is_unknown = False
    for name in names:
        runs = [run for run in plan.runs if run.name == name]
        config = configs[runs[0]]
        steps = config.training.steps - runs[0].first_step
        tokens, size = plan.tokens(config, steps), checkpoint_bytes(config)
        seconds = _seconds(plan, runs[0], config, steps)
        kept = 0 if runs[0].arm is not None and study.keep_checkpoints == "none" else size
        done = sum(map(is_done, runs))
        open_runs = len(runs) - done
        total_tokens += tokens * open_runs
        total_bytes += kept * len(runs)
        total_seconds += (seconds or 0.0) * open_runs
        is_unknown |= seconds is None and open_runs > 0
        steps_text = f"{runs[0].first_step:,} to {config.training.steps:,}"
        if "seconds_of" in runs[0].references:
            steps_text = f"{runs[0].first_step:,} to what fits"
        rows.append(
            [
                name,
                what(runs[0], config),
                str(len(runs)),
                steps_text,
                short(tokens),
                UNKNOWN if seconds is None else duration(seconds),
                f"{kept / _GIB:.2f} GiB",
                f"{done} of {len(runs)}",
            ]
        )
    spare = 2 * max(checkpoint_bytes(config) for config in configs.values())
    time_text = f"{duration(total_seconds)} at the measured step times" + (
        ", and that of the runs whose time is unknown" if is_unknown else ""
    )
    if not total_seconds:
        time_text = f"{UNKNOWN}: no run of this study has been timed on this machine yet" if is_unknown else "none"
    lines = [
        f"Study {study.file.stem}: {study.title or 'no title'}",
        f"  base       {study.config}, {count(study.launch.world_size, 'rank')} a run"
        + (", CPU" if study.launch.device == "cpu" else ""),
        f"  folder     {plan.out}",
        *(f"  data       {line}" for line in _data_lines(configs[plan.runs[0]], study.launch.world_size)),
        *(f"  weights    not ready: {problem.message}" for problem in missing_weights(plan)),
        f"  runs       {len(plan.runs)}, of which {sum(map(is_done, plan.runs))} are done",
        f"  to train   {total_tokens:,} tokens",
        f"  time       {time_text}",
        f"  disk       {total_bytes / _GIB:.2f} GiB of checkpoints at the end, and {spare / _GIB:.2f} GiB more for "
        "each run that is under way",
        "",
        *text_table(rows[0], rows[1:], left={0, 1}, has_rule=True),
        "",
        "time and tokens are those of one seed",
    ]
    return "\n".join(lines)


def what(run: StudyRun, config: RunConfig) -> str:
    """Return in a few words which heads of a run become static, when, and what decides its length."""
    if not config.saf.enable:
        text = "all heads live"
    else:
        saf, total = config.saf, config.shape.total_heads
        heads = f"{head_count(total, saf.rate, saf.rounding)} of {total} heads"
        chosen = f"of {run.references['heads_of'].name}" if "heads_of" in run.references else f"by {saf.selector}"
        when = f"after step {config.freeze_step:,}"
        schedule = "" if saf.schedule == "once" else f", {saf.schedule}"
        text = f"{heads} {chosen}, {saf.content}, {when}{schedule}"
    for key in ("seconds_of", "tokens_of"):
        if key in run.references:
            text += f"; as many {key.removesuffix('_of')} as {run.references[key].name}"
    return text


def checkpoint_bytes(config: RunConfig) -> int:
    """Return the size of a checkpoint, which holds weights and moments, in bytes."""
    moments = 2 if config.optimizer.name == "AdamW" else 1
    bytes_each = 4 if config.training.dtype == "float32" else 2
    return _num_parameters(config.model, config.shape, config.training.seq_len) * bytes_each * (1 + moments)


@lru_cache
def _num_parameters(model: ModelSection, shape: ModelShape, max_seq_len: int) -> int:
    # kept, because most runs of a study have the same model
    with torch.device("meta"):
        decoder = model_spec(model, shape, max_seq_len=max_seq_len).model.build()
    return sum(parameter.numel() for parameter in decoder.parameters())


def duration(seconds: float) -> str:
    """Return a time as text with about three digits: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def _seconds(plan: StudyPlan, run: StudyRun, config: RunConfig, steps: int) -> float | None:
    """Return the estimated seconds of a run; None if no step of the study has been timed yet.

    A run with `seconds_of` takes as long as the run that it refers to. Any other run takes `steps` times the median
    time of a step: of the same arm if one of its runs was timed, else of all arms.
    """
    if "seconds_of" in run.references:
        reference = run.references["seconds_of"]
        found = known(reference)
        if found is not None:
            return found.seconds
        return _seconds(plan, reference, plan.config(reference, known), steps)
    same = [other for other in plan.runs if other.name == run.name]
    for runs in (same, plan.runs):
        times = [time for other in runs for time in _step_times(other)]
        if times:
            return steps * median(times)
    return None


def _step_times(run: StudyRun) -> Iterator[float]:
    log = log_of(run.folder)
    for row in log.train if log else ():
        if row.step_seconds > 0:
            yield row.step_seconds


def _data_lines(config: RunConfig, world_size: int) -> list[str]:
    lines, problems = inspect_data(config, world_size)
    return [*lines, *(f"not ready: {problem.message}" for problem in problems)]
