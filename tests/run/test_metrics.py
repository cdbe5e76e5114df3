"""What a logged step and a validation write: perplexity, the tokens that the loader counts, and on which rank."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from saf_titan.run.metrics import METRICS_FILE, RunMetrics


def processor(folder: Path, monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, world_size: int = 1, pp: int = 1):
    """The metrics of one rank of a world that is not there."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    dims = SimpleNamespace(pp=pp, pp_enabled=pp > 1, world_size=world_size)
    config = RunMetrics.Config(total_steps=8)
    return config.build(
        parallel_dims=dims, dump_folder=str(folder), pp_schedule="1F1B", config_dict={}, has_quantization=False
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def log(metrics: RunMetrics, loss: float) -> None:
    metrics.begin_step()
    metrics.num_flops_per_token = 1
    metrics.log(3, loss, loss, 1.0, {"lr/ov": 1e-3})
    metrics.log_validation(loss, 3)


def test_tokens_are_those_that_the_loader_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = processor(tmp_path, monkeypatch)
    metrics.tokens_per_step = 64
    metrics.tokens_seen = lambda: 1000
    log(metrics, 5.0)
    train, validation = rows(tmp_path)
    assert train["tokens"] == 1000
    assert train["perplexity"] == validation["perplexity"] == pytest.approx(math.exp(5.0))
    assert "step 3/8 | loss 5.0000 | perplexity 148.4 |" in caplog.text
    assert "step 3/8 | validation loss 5.0000, perplexity 148.4 (scheduled)" in caplog.text


def test_a_loss_without_a_perplexity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log(processor(tmp_path, monkeypatch), 800.0)
    assert [row["perplexity"] for row in rows(tmp_path)] == [None, None]


@pytest.mark.parametrize("rank", range(4))
def test_in_a_pipeline_the_ranks_that_know_the_loss_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    caplog.set_level(logging.INFO)
    log(processor(tmp_path, monkeypatch, rank=rank, world_size=4, pp=2), 5.0)
    assert len(rows(tmp_path)) == (2 if rank == 2 else 0)
    assert ("loss 5.0000" in caplog.text) == (rank >= 2)
