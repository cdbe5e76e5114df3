"""A run writes how far its steps move the circuits and where attention looks, and trains as if it did not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from saf_titan.circuits.speed import relative_update
from saf_titan.report.write import write_report
from saf_titan.saf.install.checkpoint import model_tensors, read_checkpoint
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed

# a freeze after step 4 makes a group of heads of the first layer static; the QK circuit has four times the rate
OPTIONS = (
    *("--circuits.metrics_freq", "2", "--circuits.qk_lr_ratio", "4", "--checkpoint.interval", "1"),
    *("--model.num_kv_heads", "2", "--saf.selector", "list", "--saf.heads", '["L0H2","L0H3"]'),
)
UPDATES = ("qk_update", "ov_update")
ATTENTION = ("entropy", "sink_mass", "recent_mass")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    folder = tmp_path_factory.mktemp("two")
    return train(folder, *corpus_overrides, *OPTIONS, "--metrics.enable_tensorboard", "true", ranks=2)


def test_rows_are_those_of_the_checkpoints_before_and_after_the_step(two_ranks: Run) -> None:
    rows = two_ranks.kind("circuits")
    assert [row["step"] for row in rows] == [2, 4, 6, 8]
    before, after = (
        model_tensors(read_checkpoint(two_ranks.folder / "checkpoint" / f"step-{step}")) for step in (5, 6)
    )
    (row,) = [row for row in rows if row["step"] == 6]
    for layer, live in enumerate(([0, 1], [0, 1, 2, 3])):
        for measured, left, right in (("qk_update", "wq", "wk"), ("ov_update", "wo", "wv")):
            factors = []
            for tensors in (before, after):
                a, b = (matrix(tensors, layer, name) for name in (left, right))
                heads = live if left == "wq" else range(4)
                factors += [a[list(heads)].double(), b[[head // 2 for head in heads]].double()]
            expected = float(relative_update(*factors))
            assert row[measured][layer] == pytest.approx(expected, rel=1e-4)
    for row in rows:
        # 64 recent keys are all keys here
        assert all(0 <= value < 1 + 1e-6 for name in ATTENTION for value in row[name])
        assert all(len(row[name]) == 2 for name in (*UPDATES, *ATTENTION))
        assert all(value > 0 for name in UPDATES for value in row[name])


def matrix(tensors: dict[str, torch.Tensor], layer: int, name: str) -> torch.Tensor:
    """Factor of each head: (heads, D, C)."""
    prefix = f"layers.{layer}.attention."
    weight = tensors[f"{prefix}wo.weight"].T if name == "wo" else tensors[f"{prefix}qkv_linear.{name}.weight"]
    return weight.unflatten(0, (-1, 8))


def test_the_same_on_one_rank_and_training_is_not_touched(
    two_ranks: Run, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    one = train(tmp_path, *corpus_overrides, *OPTIONS, "--circuits.metrics_freq", "4", ranks=1)
    (row, _), (_, expected, _, _) = one.kind("circuits"), two_ranks.kind("circuits")
    for name in (*UPDATES, *ATTENTION):
        assert row[name] == pytest.approx(expected[name], rel=1e-3), name
    without = train(tmp_path / "without", *corpus_overrides, *OPTIONS, "--circuits.metrics_freq", "0", ranks=2)
    assert not without.kind("circuits")
    assert without.losses() == two_ranks.losses()


def test_tensorboard_and_the_report(two_ranks: Run, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (file,) = two_ranks.folder.glob("tb/*/events.out.tfevents.*")
    accumulator = events.EventAccumulator(str(file))
    accumulator.Reload()
    points = accumulator.Scalars("circuits/qk_update/layer_1")
    rows = two_ranks.kind("circuits")
    assert [point.value for point in points] == pytest.approx([row["qk_update"][1] for row in rows])
    mean = [point.value for point in accumulator.Scalars("circuits/entropy/mean")]
    assert mean == pytest.approx([math.fsum(row["entropy"]) / 2 for row in rows])
    page = write_report(two_ranks.folder, out=tmp_path / "report.html").read_text()
    assert "How far one step moves the circuits" in page
    assert "Attention of live heads on held-out text" in page
