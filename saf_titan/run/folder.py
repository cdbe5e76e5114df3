"""The output folder of a run: what an earlier run has left in it, and how this one begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from saf_titan.config import ConfigError, RunConfig, load_config
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
    if run.saf.matched_seconds and (clock := read_freeze(path).clock) is not None:
        past = SpentTime.from_json(clock)
        budget = TimeBudget(run.saf.matched_seconds, past.first_step, run.training.steps)
        spent = budget.is_spent(past.elapsed, past.last_update, newest)
    end = nothing_to_do(run, found, newest, budget_is_spent=spent)
    if end is None and found:
        lines.append(f"The run goes on with another configuration: {'; '.join(map(str, found))}")
    return Opening(end, tuple(lines))
