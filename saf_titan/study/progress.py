"""How far the runs of a study are, read from their folders. Imports no torch."""

from __future__ import annotations

import math
from pathlib import Path

from saf_titan.config import ConfigError, RunConfig, load_config
from saf_titan.report.rows import METRICS_FILE
from saf_titan.report.run_log import RunLog, read_run
from saf_titan.run.changes import changes
from saf_titan.study.runs import StudyRun

_RESULT_KEYS = ("model", "data.seed", "data.shuffle", "training", "optimizer", "lr_scheduler", "circuits", "saf")
"""Keys, or whole sections, that a result depends on."""

_OTHER_KEYS = {"training.gc_freq", "saf.timeout_seconds", "saf.matched_seconds", "circuits.metrics_freq"}
"""Keys of those sections that it does not depend on. The seconds of a timed arm are measured anew by every machine."""


def log_of(folder: Path) -> RunLog | None:
    """What a run has logged so far; None if it has not begun."""
    return read_run(folder) if (folder / METRICS_FILE).is_file() else None


def has_trained(run: StudyRun) -> bool:
    """Whether the run did its last step."""
    log = log_of(run.folder)
    return log is not None and log.finish is not None


def final_loss(run: StudyRun) -> float:
    """Held-out loss at the end, by the run itself or by its evaluation; nan if there is none yet."""
    for folder in (run.folder, run.evaluation):
        log = log_of(folder)
        if log is not None and log.finish is not None:
            finals = [row.loss for row in log.validations if row.phase == "final" and row.step == log.finish.step]
            if finals:
                return finals[-1]
    return math.nan


def is_done(run: StudyRun) -> bool:
    """Whether nothing is left to do for the run: a parent has trained, and an arm has a final loss as well."""
    return has_trained(run) and (run.arm is None or not math.isnan(final_loss(run)))


def require_same(run: StudyRun, config: RunConfig) -> None:
    """Raise ValueError if the run was begun with settings whose result would be another one."""
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
