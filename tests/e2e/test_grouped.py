"""Selectors, contents, trained patterns and backends where two query heads share a key head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saf_titan.run.resume import read_freeze
from saf_titan.saf.install.checkpoint import read_checkpoint
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

GROUPED = ("--model.num_kv_heads", "2", "--saf.rate", "0.5")
WV = "layers.{}.attention.qkv_linear.wv.weight"


@pytest.mark.parametrize(
    "options",
    [
        ("--saf.selector", "output_error"),
        ("--saf.selector", "qk_gradient", "--saf.schedule", "ramp", "--saf.ramp_steps", "2", "--saf.interval", "1"),
        ("--saf.selector", "random_layer_matched", "--model.attention_backend", "fused"),
        ("--saf.selector", "kl", "--saf.pattern_lr", "0.05", "--model.attention_backend", "split"),
    ],
    ids=lambda options: options[1],
)
def test_query_heads_become_static(tmp_path: Path, corpus_overrides: tuple[str, ...], options: tuple[str, ...]) -> None:
    run = train(tmp_path, *corpus_overrides, *GROUPED, *options, ranks=2)
    assert [row["static_heads"] for row in run.kind("train")][-1] == 4
    plan = read_freeze(tmp_path / "checkpoint" / "step-8").plan
    assert plan is not None
    assert plan.selector == options[1]
    assert run.losses()[8] < run.losses()[1] - 0.5


def test_pruning_takes_values_with_the_whole_group_only(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    heads = ("--saf.selector", "list", "--saf.heads", '["L0H0","L1H0","L1H2","L1H3"]', "--saf.content", "prune")
    run = train(tmp_path, *corpus_overrides, *GROUPED, *heads, ranks=2)
    assert [row["static_heads"] for row in run.kind("train")][-1] == 4
    state = read_checkpoint(tmp_path / "checkpoint" / "step-8")
    for layer, gone in enumerate(([False, False], [False, True])):
        largest = state[WV.format(layer)].unflatten(0, (2, -1)).abs().amax((1, 2))
        assert torch.equal(largest == 0, torch.tensor(gone)), layer
