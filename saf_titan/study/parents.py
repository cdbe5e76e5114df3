"""Checks, before anything is trained, that the arms of a study can start from the checkpoints that they are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from saf_titan.config import ConfigError, Problem, RunConfig, load_config
from saf_titan.data.checks import inspect_data
from saf_titan.data.loader import ShardLoader
from saf_titan.data.sources import training_loader
from saf_titan.run.changes import changes
from saf_titan.run.folder import CONFIG_FILE
from saf_titan.run.initial_weights import is_foreign
from saf_titan.run.resume import read_freeze, require_compatible
from saf_titan.saf.install.checkpoint import read_checkpoint
from saf_titan.study.checkpoints import newest_checkpoint
from saf_titan.study.load import arm_source
from saf_titan.study.plan import StudyPlan
from saf_titan.study.progress import is_done
from saf_titan.study.runs import StudyRun
from saf_titan.study.work import known

_FIXED = ("training.dtype", "optimizer.name")
"""Keys that moments depend on and that a checkpoint does not store."""


def parent_problems(plan: StudyPlan) -> list[Problem]:
    """Return a problem for each arm that cannot start from the checkpoint that it is given.

    Only checkpoints that were trained before the study are looked at, and only for runs that have no checkpoint of
    their own yet. Weights that do not exist yet are reported by `missing_weights` instead.
    """
    read = cache(read_freeze)
    problems = []
    for run in _given(plan):
        checkpoint = plan.weights_checkpoint(run) if run.takes_weights_alone else run.checkpoint
        if checkpoint is None:
            continue
        config = plan.config(run, known)
        try:
            saved = read(checkpoint)
            require_compatible(saved, config, checkpoint)
            if not run.takes_weights_alone:
                if saved.plan is not None:
                    raise ValueError(
                        f"{checkpoint} has {len(saved.plan.heads)} static heads already, which every arm would have; "
                        "give a checkpoint from before the freeze (saf.keep_checkpoint keeps it)"
                    )
                _require_same_course(checkpoint, config, plan.study.launch.world_size)
        except ValueError as error:
            problems.append(_problem(plan, run, str(error)))
    return list(dict.fromkeys(problems))


def missing_weights(plan: StudyPlan) -> list[Problem]:
    """Return a problem for each arm whose weights do not exist yet: the path holds no complete checkpoint."""
    problems = []
    for run in _given(plan):
        path = run.checkpoint
        assert path is not None
        if run.takes_weights_alone and plan.weights_checkpoint(run) is None and not is_foreign(path):
            problems.append(_problem(plan, run, f"{path} holds no complete checkpoint; train that run first"))
    return list(dict.fromkeys(problems))


def _given(plan: StudyPlan) -> Iterator[StudyRun]:
    """Yield the runs that have not begun and that start from a checkpoint which the study does not train."""
    for run in plan.runs:
        if run.checkpoint is not None and run.parent is None:
            folder = plan.config(run, known).checkpoint.folder
            if not is_done(run) and newest_checkpoint(run.folder, folder) is None:
                yield run


def _problem(plan: StudyPlan, run: StudyRun, message: str) -> Problem:
    parent = plan.study.parent
    assert run.arm is not None
    if run.arm.weights:
        return Problem(arm_source(str(plan.study.file), run.arm.name), "weights", f'"{run.arm.weights}"', message)
    key, value = ("weights", parent.weights) if parent.weights else ("run", parent.run)
    return Problem(f"{plan.study.file}: [parent]", key, f'"{value}"', message)


def _require_same_course(checkpoint: Path, config: RunConfig, world_size: int) -> None:
    """Raise ValueError unless a run can go on with the moments and the place in the data of a checkpoint.

    The message names what differs. Data that do not exist yet are not compared.
    """
    try:
        before = load_config(checkpoint.parents[1] / CONFIG_FILE)
    except ConfigError:
        # the checkpoint was copied without the folder of its run
        before = None
    found = [change for change in changes(before, config) if change.key in _FIXED] if before is not None else []
    if found:
        raise ValueError(f"{checkpoint} cannot be continued: {'; '.join(map(str, found))}; keep the old values")
    if inspect_data(config, world_size, digests=False)[1]:
        return
    loader = training_loader(config)
    if isinstance(loader, ShardLoader.Config):
        loader = replace(loader, verify=False)
    shares = {"dp_world_size": 1, "dp_rank": 0, "seq_len": config.training.seq_len, "local_batch_size": 1}
    loader.build(**shares).load_state_dict(read_checkpoint(checkpoint, prefix="dataloader.").get("dataloader", {}))
