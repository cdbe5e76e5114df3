"""Checkpoints that stay whatever keep_latest_k says.

Covers run/sound_trainer.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.run.checkpoints import complete_checkpoints
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed


def test_steps_to_keep_and_those_of_freezes_outlive_the_purge_and_a_resume(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    options = (
        *corpus_overrides,
        *("--checkpoint.keep_latest_k", "2", "--checkpoint.interval", "2", "--checkpoint.keep_steps", "[1, 5]"),
        *("--saf.keep_checkpoint", "true", "--lr_scheduler.total_steps", "16"),
    )
    first = train(tmp_path, *options, "--training.steps", "8", ranks=2)
    assert "checkpoint.keep_steps: steps 1, 5 are saved too" in first.output
    # the freeze was after step 4; step 8, the last one, is saved without a purge
    assert set(complete_checkpoints(tmp_path / "checkpoint")) >= {1, 4, 5, 8}
    train(tmp_path, *options, "--training.steps", "16", ranks=1)
    assert list(complete_checkpoints(tmp_path / "checkpoint")) == [1, 4, 5, 12, 14, 16]
