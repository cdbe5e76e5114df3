"""Freezing and resuming torchtitan's own models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from saf_titan.run.resume import read_freeze
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

SMALL = ("--model.flavor", "debugmodel", "--model.num_layers", "2", "--model.num_heads", "0", "--model.dim", "0")


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_heads_freeze_and_the_run_resumes_bit_identically(
    tmp_path: Path, corpus_overrides: tuple[str, ...], family: str
) -> None:
    options = (
        *corpus_overrides,
        "--model.family",
        family,
        *SMALL,
        "--optimizer.lr",
        "1e-3",
        "--training.seq_len",
        "32",
        # the cost of these models is that of a microbatch, not of its sequences
        "--training.local_batch_size",
        "4",
        "--checkpoint.interval",
        "6",
    )
    whole = train(tmp_path / "whole", *options, ranks=2)
    assert [row["static_heads"] for row in whole.kind("train")] == [0, 0, 0, 0, 8, 8, 8, 8]
    assert whole.losses()[8] < whole.losses()[1] - 0.5
    # on a CPU torchtitan's own initialisers would give both ranks the same half
    short = ("--saf.enable", "false", "--training.steps", "2", "--lr_scheduler.total_steps", "8")
    alone = train(tmp_path / "alone", *options, *short, ranks=1)
    assert alone.losses()[1] == pytest.approx(whole.losses()[1], abs=2e-5)

    at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-6", at / "checkpoint" / "step-6")
    resumed = train(at, *options, ranks=2)
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 6}
    plans = [read_freeze(run.folder / "checkpoint" / "step-8").plan for run in (whole, resumed)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].digest == plans[1].digest
