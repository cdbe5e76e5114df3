"""The output folder of a run: decides from its contents whether a run starts, resumes, or has nothing to do."""

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
    """Lines for the log, before the run is built."""


def open_folder(run: RunConfig) -> Opening:
    """Compare a configuration with the contents of its folder and return how the run begins; changes nothing.

    Raises ValueError if the folder holds a run that cannot be resumed with this configuration.
    """
    folder = Path(run.dump_folder)
    checkpoints = folder / run.checkpoint.folder
    complete = complete_checkpoints(checkpoints) if run.checkpoint.enable else {}
    lines = [
        f"{path} is incomplete (a save was cut short) and is not used; it is removed once newer checkpoints replace it"
        for path in unfinished_checkpoints(checkpoints)
    ]
    if not complete:
        if (folder / CONFIG_FILE).is_file():
            lines.append(f"{folder} holds an earlier run without a checkpoint, so this run starts from the beginning")
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
    """Return whether a run that has ended is to freeze more heads than its last checkpoint has."""
    if not run.freezes_at_end:
        return False
    plan = read_freeze(newest).plan
    num_static, rate = (len(plan.heads), plan.rate) if plan is not None else (0, 0.0)
    # the same decision as Freezer.rate_due: a plan made for this rate is complete, whatever its number of heads
    return run.saf.rate > rate and head_count(run.shape.total_heads, run.saf.rate, run.saf.rounding) > num_static


def _missing_kept(run: RunConfig, complete: Mapping[int, Path]) -> list[str]:
    """Return a line for each step to keep that the run has passed and whose checkpoint no longer exists."""
    missing = [step for step in sorted(set(run.checkpoint.keep_steps)) if step < max(complete) and step not in complete]
    return [
        f"checkpoint.keep_steps: the run is past step {step}, and the checkpoint of that step no longer exists"
        for step in missing
    ]
