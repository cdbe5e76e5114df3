"""The output folder of a run: what an earlier run has left in it, and how this one begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from saf_titan.config import ConfigError, RunConfig, load_config
from saf_titan.heads.counts import head_count
from saf_titan.report.rows import METRICS_FILE
from saf_titan.report.run_log import read_run
from saf_titan.run.changes import changes, nothing_to_do, require_same_run
from saf_titan.run.checkpoints import complete_checkpoints, unfinished_checkpoints
from saf_titan.run.resume import read_freeze
from saf_titan.run.time_budget import SpentTime, TimeBudget

CONFIG_FILE = "config.toml"


@dataclass(frozen=True)
class Opening:
    """How a run begins in its folder."""

    nothing_to_do: str | None
    """Why there is nothing to do; None if the run goes on or starts."""
    lines: tuple[str, ...]
    """What is said before the run is built."""


def open_folder(run: RunConfig) -> Opening:
    """Compare a configuration with what its folder holds, before anything is built; changes nothing.

    Raises ValueError if the folder holds a run that this configuration cannot go on with.
    """
    folder = Path(run.dump_folder)
    checkpoints = folder / run.checkpoint.folder
    complete = complete_checkpoints(checkpoints) if run.checkpoint.enable else {}
    lines = [
        f"{path} is unfinished (a save was cut short) and is not used; it goes when later checkpoints replace it"
        for path in unfinished_checkpoints(checkpoints)
    ]
    if not complete:
        if (folder / CONFIG_FILE).is_file():
            lines.append(f"{folder} holds an earlier run without a checkpoint to go on from: this one starts anew")
        return Opening(None, tuple(lines))
    newest, path = max(complete.items())
    found, spent = [], False
    try:
        before = load_config(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None
    except ConfigError as error:
        before = None
        lines.append(f"{folder / CONFIG_FILE} cannot be compared with this configuration: {error}")
    if before is not None:
        found = changes(before, run)
        require_same_run(found, folder)
    lines += _missing_kept(run, complete)
    if run.saf.matched_seconds and (clock := read_freeze(path).clock) is not None:
        past = SpentTime.from_json(clock)
        budget = TimeBudget(run.saf.matched_seconds, past.first_step, run.training.steps)
        spent = budget.is_spent(past.elapsed, past.last_update, newest)
    due = newest >= run.training.steps and _end_freeze_is_due(run, path)
    if due:
        lines.append(f"The run is at its last step, {newest}: heads are frozen there, without further training")
    end = nothing_to_do(run, found, newest, budget_is_spent=spent, freeze_is_due=due)
    if end is not None and _end_is_missing(folder):
        end = None
        lines.append(f"The run is at its last step, {newest}, and was ended before that was recorded: its end follows")
    if end is None and found:
        lines.append(f"The run goes on with another configuration: {'; '.join(map(str, found))}")
    return Opening(end, tuple(lines))


def _end_is_missing(folder: Path) -> bool:
    """Whether a run that has done its last step was killed before it wrote so; false without its metrics."""
    return (folder / METRICS_FILE).is_file() and read_run(folder).finish is None


def _end_freeze_is_due(run: RunConfig, newest: Path) -> bool:
    """Whether a run that has ended is to freeze more heads than its last checkpoint has."""
    if not run.freezes_at_end:
        return False
    plan = read_freeze(newest).plan
    num_static, rate = (len(plan.heads), plan.rate) if plan is not None else (0, 0.0)
    # as Freezer.rate_due decides: a rate that was asked for before is not asked for again
    return run.saf.rate > rate and head_count(run.shape.total_heads, run.saf.rate, run.saf.rounding) > num_static


def _missing_kept(run: RunConfig, complete: Mapping[int, Path]) -> list[str]:
    """Say which steps can no longer be kept, because the run is past them and their checkpoints are gone."""
    missing = [step for step in sorted(set(run.checkpoint.keep_steps)) if step < max(complete) and step not in complete]
    return [
        f"checkpoint.keep_steps: the run is past step {step}, and its checkpoint is not there any more"
        for step in missing
    ]
