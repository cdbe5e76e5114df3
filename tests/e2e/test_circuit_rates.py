"""The factor of a circuit is exact at every step of a run that resumes, freezes, accumulates and compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.runs import GRAPHS_ALONE, train

pytestmark = pytest.mark.distributed

# four microbatches a step on two ranks; a freeze after step 4
OPTIONS = (
    *("--circuits.group", "qk:layers=1-1,factor=8,schedule=hold_then_ramp,factor_end=2,hold_steps=2,ramp_steps=3"),
    *("--circuits.group", "mlp:factor=0.5", "--circuits.metrics_freq", "0"),
    *("--compile.enable", "true", *GRAPHS_ALONE, "--activation_checkpoint.mode", "selective"),
)
FACTORS = [8, 8, 8, 6, 4, 2, 2, 2]


def test_factors_across_freeze_and_resume_under_compile_and_checkpointing(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    end_early = ("--training.steps", "5", "--lr_scheduler.total_steps", "8")
    train(tmp_path, *corpus_overrides, *OPTIONS, *end_early, ranks=2)
    run = train(tmp_path, *corpus_overrides, *OPTIONS, ranks=2)
    assert run.kind("resume")[0]["step"] == 5
    assert run.kind("freeze")[0]["step"] == 4
    rows = run.kind("train")
    assert [row["step"] for row in rows] == list(range(1, 9))
    for row, factor in zip(rows, FACTORS, strict=True):
        assert row["lr/qk[1-1]"] == pytest.approx(factor * row["lr/ov"], rel=1e-12)
        assert row["lr/mlp"] == pytest.approx(0.5 * row["lr/ov"], rel=1e-12)
        # layer 0 has the ordinary rate
        assert row["lr/qk"] == row["lr/ov"]
