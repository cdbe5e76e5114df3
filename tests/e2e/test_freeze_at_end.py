"""Heads that become static after the last step, and on a run that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.run.resume import read_freeze
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

AT_END = ("--saf.step", "8")


def test_a_run_ends_with_the_freeze_and_keeps_the_live_heads_beside(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    plain = train(tmp_path / "plain", *corpus_overrides, "--saf.enable", "false", ranks=2)
    frozen = train(tmp_path / "frozen", *corpus_overrides, *AT_END, ranks=2)
    assert frozen.losses() == plain.losses()
    assert [(row["step"], row["heads"]) for row in frozen.kind("freeze")] == [(8, 2)]
    phases = [row["phase"] for row in frozen.kind("validation") if row["step"] == 8]
    assert phases == ["final", "before_freeze", "after_freeze"]
    plan = read_freeze(frozen.folder / "checkpoint" / "step-8").plan
    assert plan is not None
    assert len(plan.heads) == 2
    assert read_freeze(frozen.folder / "checkpoint" / "step-8-live").plan is None

    # the run that has ended without a freeze makes the same plan, also on another number of ranks
    later = train(tmp_path / "plain", *corpus_overrides, *AT_END, ranks=1)
    assert "The run is at its last step, 8: heads are frozen there, without further training" in later.output
    assert len(later.kind("train")) == 8
    late_plan = read_freeze(tmp_path / "plain" / "checkpoint" / "step-8").plan
    assert late_plan is not None
    assert [(h.layer, h.head) for h in late_plan.heads] == [(h.layer, h.head) for h in plan.heads]
    assert later.kind("finish")[-1]["step"] == 8

    # as a kill between the two renames leaves the folder: the same command finishes what was begun
    checkpoints, metrics = tmp_path / "plain" / "checkpoint", tmp_path / "plain" / "metrics.jsonl"
    (checkpoints / "step-8").rename(checkpoints / "step-8-being-saved")
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    ended = train(tmp_path / "plain", *corpus_overrides, *AT_END, ranks=1)
    assert "The run is at its last step, 8, and was ended before that was recorded: its end follows" in ended.output
    assert [row["step"] for row in ended.kind("finish")] == [8, 8]
    assert ended.rows[-1]["phase"] == "final"
    assert len(ended.kind("freeze")) == 1
    recovered = read_freeze(checkpoints / "step-8").plan
    assert recovered is not None
    assert recovered.digest == late_plan.digest

    again = train(tmp_path / "plain", *corpus_overrides, *AT_END, ranks=1)
    assert "Nothing to do: the run is at step 8 of 8" in again.output
    more = train(tmp_path / "plain", *corpus_overrides, *AT_END, "--saf.rate", "0.5", ranks=1)
    assert [row["heads"] for row in more.kind("freeze")] == [2, 4]
    # both earlier states are there
    assert read_freeze(tmp_path / "plain" / "checkpoint" / "step-8-live").plan is None
    earlier = read_freeze(tmp_path / "plain" / "checkpoint" / "step-8-static-2").plan
    assert earlier is not None
    assert earlier.digest == late_plan.digest
