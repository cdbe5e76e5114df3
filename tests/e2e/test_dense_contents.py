"""Dense contents through the whole trainer: the same path, resume included."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from saf_titan.run.resume import read_freeze
from saf_titan.saf.fit.pattern import DensePattern
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

GAUSSIAN = ("--saf.content", "gaussian", "--saf.rate", "0.375")


def test_dense_patterns_train_and_resume_bit_identically(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    options = (*corpus_overrides, *GAUSSIAN)
    whole = train(tmp_path / "whole", *options, ranks=2)
    assert [row["static_heads"] for row in whole.kind("train")] == [0, 0, 0, 0, 3, 3, 3, 3]
    plan = read_freeze(whole.folder / "checkpoint" / "step-8").plan
    assert plan is not None
    assert all(isinstance(head.pattern, DensePattern) and head.fit_kl > 0 for head in plan.heads)

    at = tmp_path / "resumed"
    shutil.copytree(whole.folder / "checkpoint" / "step-6", at / "checkpoint" / "step-6")
    resumed = train(at, *options, ranks=2)
    assert resumed.losses() == {step: loss for step, loss in whole.losses().items() if step > 6}
