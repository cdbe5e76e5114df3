"""Selectors, contents and schedules through the whole trainer.

Covers run/announce.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from saf_titan.report.run_log import read_run
from saf_titan.report.write import write_report
from saf_titan.run.resume import read_freeze
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

RAMP = (
    *("--saf.schedule", "ramp", "--saf.step", "2", "--saf.ramp_steps", "4"),
    *("--saf.interval", "2", "--saf.rate", "0.5"),
)
BUDGET = (
    *("--saf.schedule", "loss_budget", "--saf.step", "2", "--saf.interval", "1", "--saf.rate", "0.5"),
    *("--saf.increment", "0.25", "--saf.loss_budget", "1e-9", "--saf.max_failures", "2"),
)


def test_a_ramp_freezes_in_steps_and_resumes_between_them(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    whole = train(tmp_path / "whole", *corpus_overrides, *RAMP, ranks=2)
    assert [row["static_heads"] for row in whole.kind("train")] == [0, 0, 0, 0, 2, 2, 4, 4]
    assert [(row["step"], row["heads"]) for row in whole.kind("freeze")] == [(4, 2), (6, 4)]
    plan = read_freeze(whole.folder / "checkpoint" / "step-8").plan
    assert plan is not None
    assert sorted({head.step for head in plan.heads}) == [4, 6]

    resumed_at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-6", resumed_at / "checkpoint" / "step-6")
    resumed = train(resumed_at, *corpus_overrides, *RAMP, ranks=2)
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 6}
    assert [row["static_heads"] for row in resumed.kind("train")] == [4, 4]


def test_a_freeze_over_budget_is_undone_to_the_bit(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    plain = train(tmp_path / "plain", *corpus_overrides, "--saf.enable", "false", ranks=2)
    budget = train(tmp_path / "budget", *corpus_overrides, *BUDGET, ranks=2)
    undone = budget.kind("freeze_undone")
    assert undone
    log = read_run(budget.folder)
    assert [row.step for row in log.undone] == [row["step"] for row in undone]
    assert log.finished
    assert log.damaged == []
    assert log.unknown == []
    assert "Undone freezes" in write_report(budget.folder).read_text()
    for row in undone:
        before, after = row["held_out_losses"]
        assert after > before
    if not budget.kind("freeze"):
        assert budget.losses() == plain.losses()
    first = undone[0]["step"]
    kept = [row["step"] for row in budget.kind("freeze")]
    until = min([*kept, 8])
    assert first <= 8
    # undone freezes leave no trace in the losses that follow
    for step in range(1, until + 1):
        assert budget.losses()[step] == plain.losses()[step], step


def test_the_state_of_a_loss_budget_survives_a_restart(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    whole = train(tmp_path / "whole", *corpus_overrides, *BUDGET, ranks=1)
    at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-4", at / "checkpoint" / "step-4")
    resumed = train(at, *corpus_overrides, *BUDGET, ranks=1)
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 4}
    states = [read_freeze(run.folder / "checkpoint" / "step-8").state for run in (whole, resumed)]
    assert states[0] is not None
    assert states[0] == states[1]


def test_a_loss_budget_resumes_at_a_freeze_between_two_checkpoints(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    options = (
        *corpus_overrides,
        *("--saf.schedule", "loss_budget", "--saf.step", "3", "--saf.interval", "3", "--saf.rate", "0.5"),
        *("--saf.increment", "0.25", "--saf.loss_budget", "1.0"),
    )
    whole = train(tmp_path / "whole", *options, ranks=1)
    assert [row["step"] for row in whole.kind("freeze")] == [3, 6]
    at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-3", at / "checkpoint" / "step-3")
    resumed = train(at, *options, ranks=1)
    assert [row["step"] for row in resumed.kind("freeze")] == [3, 6]
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 3}


@pytest.mark.parametrize("backend", ["naive", "split", "fused"])
def test_every_attention_backend_trains(tmp_path: Path, corpus_overrides: tuple[str, ...], backend: str) -> None:
    run = train(tmp_path, *corpus_overrides, "--model.attention_backend", backend, ranks=1)
    assert [row["static_heads"] for row in run.kind("train")][-1] == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--saf.selector", "output_error"),
        ("--saf.selector", "qk_gradient"),
        ("--saf.selector", "list", "--saf.heads", '["L0H3","L1H1"]', "--saf.content", "uniform"),
        ("--saf.selector", "random_layer_matched", "--saf.content", "random", "--saf.seed", "3"),
        ("--saf.selector", "gate_taylor", "--saf.content", "prune"),
        ("--saf.selector", "kl", "--saf.compensate", "true"),
    ],
    ids=lambda options: options[1],
)
def test_selectors_and_contents_reach_the_plan(
    tmp_path: Path, corpus_overrides: tuple[str, ...], options: tuple[str, ...]
) -> None:
    run = train(tmp_path, *corpus_overrides, *options, ranks=2)
    plan = read_freeze(run.folder / "checkpoint" / "step-8").plan
    assert plan is not None
    assert plan.selector == options[1]
    assert len(plan.heads) == 2
    if options[1] == "list":
        assert [(head.layer, head.head) for head in plan.heads] == [(0, 3), (1, 1)]
        assert plan.content == "uniform"


def test_trainable_patterns_move_and_resume_bit_identically(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    options = (*corpus_overrides, "--saf.pattern_lr", "0.05")
    whole = train(tmp_path / "whole", *options, ranks=2)
    plans = [read_freeze(whole.folder / "checkpoint" / f"step-{step}").plan for step in (6, 8)]
    assert plans[0] is not None
    assert plans[1] is not None
    for early, late in zip(plans[0].heads, plans[1].heads, strict=True):
        assert (early.layer, early.head) == (late.layer, late.head)
        assert 0 < (early.pattern.vectors[0] - late.pattern.vectors[0]).abs().max() < 0.5

    at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-6", at / "checkpoint" / "step-6")
    resumed = train(at, *options, ranks=2)
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 6}
    last = read_freeze(resumed.folder / "checkpoint" / "step-8").plan
    assert last is not None
    assert last.digest == plans[1].digest


def test_a_time_budget_ends_the_run_and_the_learning_rate_schedule(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    # a run looks at its clock about three times a step; a step must take less than ten real seconds
    budget, look = 400, 15.0
    planned = ("--training.steps", "40", "--saf.step", "4", "--checkpoint.interval", "1000")
    matched = ("--saf.matched_seconds", str(budget))
    run = train(tmp_path, *corpus_overrides, *planned, *matched, ranks=2, seconds_a_look=look)
    assert "Time budget spent" in run.output
    rows = run.kind("train")
    assert 8 < len(rows) < 30
    # the schedule ends with the time, not with the steps: cosine down to a tenth of the peak
    assert rows[-1]["lr/ov"] < 0.4 * 1e-2
    assert run.kind("validation")[-1]["phase"] == "final"
    (finish,) = run.kind("finish")
    assert finish["step"] == rows[-1]["step"]
    # the report knows that the run is over, whatever number of steps it took
    assert read_run(run.folder).finished
    assert budget - 3 * look < finish["seconds"] < budget + 3 * look
    assert (tmp_path / "checkpoint" / f"step-{rows[-1]['step']}" / ".metadata").is_file()
    # the time is spent: the same command again trains no further
    again = train(tmp_path, *corpus_overrides, *planned, *matched, ranks=1, seconds_a_look=look)
    assert again.kind("finish")[-1]["step"] == finish["step"]
    assert len(again.kind("train")) == len(rows)
    # another run's time is its own: a branch of the spent run has all of its seconds, and here too few for a freeze
    parent = tmp_path / "checkpoint" / f"step-{finish['step']}"
    branch = train(
        tmp_path / "branch",
        *corpus_overrides,
        *("--checkpoint.initial_load_path", str(parent), "--checkpoint.initial_load_model_only", "true"),
        *("--saf.matched_seconds", "90", "--saf.rate", "0.5", "--saf.step", "39", "--training.steps", "40"),
        ranks=1,
        seconds_a_look=look,
    )
    assert branch.kind("train")
    assert "ended the run before the freeze at step 39" in branch.output
