"""With freezing off and ratio 1 our trainer is torchtitan's, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import run_ranks

pytestmark = pytest.mark.distributed

STEPS = 6
SMALL = ("--training.seq_len=32", "--model.num_layers=2")


def losses(kind: str, corpus: str, out: Path, *overrides: str) -> list[str]:
    words = ["scripts/bench/stock_run.py", kind, corpus, str(out), str(STEPS), *SMALL, *overrides]
    status, output = run_ranks(words, ranks=2)
    assert status == 0, output[-4000:]
    return json.loads(out.read_text())["losses"]


@pytest.mark.parametrize(
    "model",
    [
        (),
        ("--model.fuse_qkv=false",),
        ("--model.fuse_qkv=false", "--model.family=qwen3"),
    ],
    ids=["fused", "split", "grouped"],
)
def test_losses_equal_stock_torchtitan(
    tmp_path: Path, corpus_overrides: tuple[str, ...], model: tuple[str, ...]
) -> None:
    ours = losses("ours", corpus_overrides[1], tmp_path / "ours.json", *model)
    stock = losses("stock", corpus_overrides[1], tmp_path / "stock.json", *model)
    assert len(ours) == STEPS
    assert len(set(ours)) == STEPS
    assert ours == stock
