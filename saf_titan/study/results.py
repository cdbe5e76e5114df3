"""Collects what the finished runs of a study have measured, for each arm, and the changes against the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from saf_titan.report.rows import ValidationRow
from saf_titan.report.run_log import RunLog, joined
from saf_titan.report.summary import StepTime, step_time, validation_at
from saf_titan.study.answers import Answers, final_answers, mean_accuracy
from saf_titan.study.plan import StudyPlan
from saf_titan.study.progress import final_loss, log_of
from saf_titan.study.runs import StudyRun
from saf_titan.study.schema import Arm
from saf_titan.study.statistics import Spread, percent, spread
from saf_titan.study.work import static_heads


@dataclass(frozen=True)
class RunResult:
    """One finished run of an arm. A number that was not measured is nan."""

    seed: int
    log: RunLog
    """Log of the arm alone, from its branch on."""
    whole: RunLog
    """Log of the arm and its parents, from the first step on."""
    heads: tuple[str, ...]
    """Static heads at the end, in the order in which they were chosen."""
    answers: Answers
    """Answers to the synthetic sequences at the end; empty for a run on text."""
    values: dict[str, float]
    """Column of `schema.COLUMNS` -> value; without `change` and `perplexity`, which need the baseline."""


@dataclass(frozen=True)
class ArmResult:
    """All finished runs of an arm."""

    arm: Arm
    runs: tuple[RunResult, ...]
    baseline: dict[int, float]
    """Seed -> final loss of the baseline."""

    @cached_property
    def changes(self) -> dict[int, float]:
        """Seed -> final loss minus that of the baseline with the same seed, nats per token."""
        finals = {run.seed: run.values["final"] for run in self.runs}
        return {seed: final - self.baseline[seed] for seed, final in finals.items() if seed in self.baseline}

    def column(self, name: str) -> Spread:
        """Return the values of a column, one for each seed."""
        if name == "change":
            return spread(list(self.changes.values()))
        if name == "perplexity":
            return spread([percent(change) for change in self.changes.values()])
        if name == "published":
            return spread([self.arm.published])
        return spread([run.values[name] for run in self.runs])


def read_results(plan: StudyPlan) -> list[ArmResult]:
    """Read all finished runs of a study, in the order of its arms; arms without one have no runs."""
    results = {run: _read(run) for run in plan.runs if run.arm is not None}
    name = plan.study.baseline_name
    baseline = {
        run.seed: result.values["final"] for run, result in results.items() if result is not None and run.name == name
    }
    return [
        ArmResult(arm, tuple(result for run, result in results.items() if result and run.arm is arm), baseline)
        for arm in plan.arms
    ]


def _read(run: StudyRun) -> RunResult | None:
    final, log = final_loss(run), log_of(run.folder)
    if math.isnan(final) or log is None or log.finish is None:
        return None
    if validation_at(log, "final", log.finish.step) is None:
        # an evaluation has measured it, after the clock of the run had stopped
        row = ValidationRow(step=log.finish.step, loss=final, phase="final")
        log = replace(log, validations=[*log.validations, row])
    assert log.finish is not None
    whole = log
    ancestor = run.parent
    while ancestor is not None and (earlier := log_of(ancestor.folder)) is not None:
        whole = joined(earlier, whole)
        ancestor = ancestor.parent
    heads = static_heads(run.folder)
    times = step_time(whole, log.freezes[0], log.freezes[-1]) if log.freezes else _without_freeze(whole, run.first_step)
    stages = [row.seconds for row in log.freezes]
    calibrate = sum(stage.get("calibrate", 0.0) for stage in stages)
    before = [row.tokens for row in whole.train if row.step <= run.first_step] or [0.0]
    values = {
        "final": final,
        "accuracy": mean_accuracy(answers) if (answers := final_answers(run)) else math.nan,
        "jump": _jump(log),
        "updates": float(log.finish.step - run.first_step),
        "tokens": log.train[-1].tokens - before[-1] if log.train else math.nan,
        "seconds": log.finish.seconds,
        "before": 1 / median(times.before) if times.before else math.nan,
        "after": 1 / median(times.after) if times.after else math.nan,
        "speedup": times.speedup.median if times.speedup and not times.problem else math.nan,
        "calibrate": calibrate if stages else math.nan,
        "fit": sum(sum(stage.values()) for stage in stages) - calibrate if stages else math.nan,
        "memory": max((row.peak_memory_gib for row in log.train), default=math.nan),
        "heads": float(len(heads)),
    }
    return RunResult(run.seed, log, whole, heads, answers, values)


def _without_freeze(whole: RunLog, branch_step: int) -> StepTime:
    """Return the step times before and after the branch of an arm that keeps its heads as they are."""
    rows = [row for row in whole.train if row.step_seconds > 0]
    return StepTime(
        before=tuple(row.step_seconds for row in rows if row.step <= branch_step),
        after=tuple(row.step_seconds for row in rows if row.step > branch_step),
    )


def _jump(log: RunLog) -> float:
    """Return the held-out loss right after a freeze minus that right before it, summed over all freezes, in nats."""
    jumps = []
    for freeze in log.freezes:
        before = validation_at(log, "before_freeze", freeze.step)
        after = validation_at(log, "after_freeze", freeze.step)
        if before is not None and after is not None:
            jumps.append(after - before)
    return sum(jumps) if jumps else math.nan
