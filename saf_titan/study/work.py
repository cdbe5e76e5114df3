"""Trains the runs of a study. Any number of processes, on machines that share the folder, may do so at once.

There is no server. Each process takes the next run whose parent and references have finished and whose folder no other
process has locked. The operating system releases the lock when a process ends, however it ends, and another process
goes on from the run's newest checkpoint.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from saf_titan.fields.step_folders import INDEX
from saf_titan.report.format import count
from saf_titan.run.lock import InUse, lock
from saf_titan.run.resume import read_freeze
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.study.checkpoints import newest_checkpoint
from saf_titan.study.launch import LOG_FILE, Launcher, Stopped
from saf_titan.study.plan import StudyPlan
from saf_titan.study.progress import final_loss, has_trained, is_done, log_of, require_same
from saf_titan.study.runs import Found, StudyRun

STUDY_LOCK = ".study.lock"
"""Name of the file that a study locks in the folder of the run that it works on."""

_POLL_SECONDS = 0.5
_POLLS_A_LOOK = 10

Say = Callable[[str], None]


def work(plan: StudyPlan, launcher: Launcher, say: Say) -> None:
    """Train all runs that are not done, and return when every run is done, by this process or by others.

    Raises:
        Stopped: a stop was requested.
        Failed: a run ended with an error.
        ValueError: a folder holds a run with other settings.
    """
    waiting = False
    while todo := [run for run in plan.runs if not is_done(run)]:
        if any(_try(plan, run, launcher, say) for run in todo if all(map(is_done, run.needs))):
            waiting = False
            continue
        if not waiting:
            say(f"waiting for {count(len(todo), 'run')} of other processes")
            waiting = True
        for _ in range(_POLLS_A_LOOK):
            if launcher.stop_requested:
                raise Stopped
            time.sleep(_POLL_SECONDS)


def known(run: StudyRun) -> Found | None:
    """Return what the arms that refer to a run take from it; None if the run has not finished."""
    log = log_of(run.folder)
    if log is None or log.finish is None:
        return None
    return Found(static_heads(run.folder), log.finish.seconds, log.finish.step)


def static_heads(folder: Path) -> tuple[str, ...]:
    """Return the names of the static heads of a run at its end, such as "L1H6", in the order of their selection."""
    log = log_of(folder)
    if log is None:
        return ()
    if log.freezes:
        plan: StaticPlan | None = StaticPlan.load(folder / log.freezes[-1].folder / "plan.safetensors")
    elif log.config is not None and log.train and log.train[-1].static_heads:
        # the run froze no heads, so they came with its initial weights
        checkpoint = newest_checkpoint(folder, log.config.checkpoint.folder)
        plan = read_freeze(checkpoint or Path(log.config.checkpoint.initial_load_path)).plan
    else:
        plan = None
    heads = sorted(plan.heads, key=lambda head: (head.step, head.rank)) if plan is not None else []
    return tuple(head.name for head in heads)


def _try(plan: StudyPlan, run: StudyRun, launcher: Launcher, say: Say) -> bool:
    """Do a run unless another process works on it; return whether this process did the run."""
    try:
        held = lock(run.folder, STUDY_LOCK)
    except InUse:
        return False
    with held:
        try:
            # a run whose study was killed may still be saving its last step
            lock(run.folder).close()
        except InUse:
            return False
        # another process may have finished the run after this one looked
        if not is_done(run):
            _do(plan, run, launcher, say)
    return True


def _do(plan: StudyPlan, run: StudyRun, launcher: Launcher, say: Say) -> None:
    config = plan.config(run, known)
    require_same(run, config)
    checkpoints = run.folder / config.checkpoint.folder
    if not has_trained(run) or not _last_checkpoint(run, checkpoints).is_file():
        begun = log_of(run.folder)
        verb = f"goes on (step {begun.last_step:,} is logged)" if begun and begun.last_step else "begins"
        say(f"[{plan.runs.index(run) + 1}/{len(plan.runs)}] {run.label} {verb}; log: {run.folder / LOG_FILE}")
        start = time.monotonic()
        launcher.run(config)
        if not has_trained(run):
            raise Stopped(f"{run.label} was stopped before its last step")
        say(f"    step {_last_step(run):,} after {time.monotonic() - start:,.0f} s")
    if run.arm is not None and math.isnan(final_loss(run)):
        launcher.run(plan.evaluation_config(run, _last_step(run)))
        say(f"    evaluated: held-out loss {final_loss(run):.4f}")
    _drop_checkpoints(plan, run, checkpoints, _last_step(run))


def _last_step(run: StudyRun) -> int:
    log = log_of(run.folder)
    return log.finish.step if log is not None and log.finish is not None else 0


def _last_checkpoint(run: StudyRun, checkpoints: Path) -> Path:
    """Return the index file of the last step's checkpoint.

    It is missing if the run was killed while it saved this checkpoint; the run must then be started once more.
    """
    return checkpoints / f"step-{_last_step(run)}" / INDEX


def _drop_checkpoints(plan: StudyPlan, run: StudyRun, folder: Path, last_step: int) -> None:
    """Remove the checkpoints of a finished run that are not to be kept.

    folder: the folder of the run's checkpoints.
    """
    keep = "last" if run.arm is None else plan.study.keep_checkpoints
    if keep == "all" or not folder.is_dir():
        return
    for path in folder.iterdir():
        if keep == "none" or path.name != f"step-{last_step}":
            # the index goes first: without it, a half-deleted folder is not taken for a checkpoint
            (path / INDEX).unlink(missing_ok=True)
            shutil.rmtree(path)
