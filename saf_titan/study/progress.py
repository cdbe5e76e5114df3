"""Reads from the folders of runs how far they have come. Imports no torch."""

from __future__ import annotations

import math
from pathlib import Path

from saf_titan.config import ConfigError, RunConfig, load_config
from saf_titan.report.rows import METRICS_FILE
from saf_titan.report.run_log import RunLog, read_run
from saf_titan.run.changes import changes
from saf_titan.study.runs import StudyRun

_RESULT_KEYS = ("model", "data.seed", "data.shuffle", "training", "optimizer", "lr_scheduler", "circuits", "saf")
"""Keys and whole sections that the result of a run depends on."""

_OTHER_KEYS = {"training.gc_freq", "saf.timeout_seconds", "saf.matched_seconds", "circuits.metrics_freq"}
"""Keys of these sections that are not compared. `saf.matched_seconds` is the measured time of another arm."""


def log_of(folder: Path) -> RunLog | None:
    """Return what a run has logged so far; None if it has not begun."""
    return read_run(folder) if (folder / METRICS_FILE).is_file() else None


def has_trained(run: StudyRun) -> bool:
    """Return whether the run has done its last step."""
    log = log_of(run.folder)
    return log is not None and log.finish is not None


def final_loss(run: StudyRun) -> float:
    """Return the held-out loss at the end, from the run itself or from its evaluation; nan if there is none yet."""
    for folder in (run.folder, run.evaluation):
        log = log_of(folder)
        if log is not None and log.finish is not None:
            finals = [row.loss for row in log.validations if row.phase == "final" and row.step == log.finish.step]
            if finals:
                return finals[-1]
    return math.nan


def is_done(run: StudyRun) -> bool:
    """Return whether the run has finished: it has done its last step and, if it is an arm, has a final loss."""
    return has_trained(run) and (run.arm is None or not math.isnan(final_loss(run)))


def require_same(run: StudyRun, config: RunConfig) -> None:
    """Raise ValueError if the run was begun with other settings and these would change its result."""
    try:
        before = load_config(run.folder / "config.toml")
    except ConfigError:
        return
    found = [change for change in changes(before, config) if _matters(change.key)]
    if found:
        raise ValueError(
            f"{run.label} was begun with other settings: {'; '.join(map(str, found))}. Give the arm another name, or "
            f"the study another --out, or remove {run.folder} to train it again"
        )


def _matters(key: str) -> bool:
    return key not in _OTHER_KEYS and (key in _RESULT_KEYS or key.partition(".")[0] in _RESULT_KEYS)
