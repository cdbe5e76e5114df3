"""Weights that static heads no longer use stay exactly zero, however the model is sharded and a step computed.

Covers models/parallelize.py, layers/activation_checkpoint.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saf_titan.saf.install.checkpoint import model_tensors, read_checkpoint
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed

# two query heads a key head; a whole group becomes static in the first layer, half a group in the second
HEADS = ("--saf.selector", "list", "--saf.heads", '["L0H2","L0H3","L1H0"]', "--saf.rate", "0.375")
# the rate is that of the listed heads; weight decay is on
MODEL = ("--model.num_kv_heads", "2", *HEADS)
STEPS = ("--saf.step", "2", "--training.steps", "52", "--checkpoint.interval", "1000", "--validator.enable", "false")
HEAD_DIM = 8
STATIC = {
    "layers.0.attention.qkv_linear.wq.weight": [2, 3],
    "layers.0.attention.qkv_linear.wk.weight": [1],
    "layers.0.attention.qkv_linear.wv.weight": [],
    "layers.1.attention.qkv_linear.wq.weight": [0],
    "layers.1.attention.qkv_linear.wk.weight": [],
}
"""Blocks of rows that are dead."""

ONE_MICROBATCH = ("--training.global_batch_size", "-1")
"""Otherwise gradients accumulate."""
BFLOAT16 = ("--training.mixed_precision_param", "bfloat16")
HSDP = ("--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "2")
DDP = (
    *("--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "1"),
    *("--parallelism.spmd_backend", "partial_dtensor"),
)


def assert_dead_stay_zero(run: Run, moments_each: int = 2) -> None:
    losses = run.losses()
    assert losses[52] < losses[3]
    state = read_checkpoint(run.folder / "checkpoint" / "step-52")
    for name, dead in STATIC.items():
        moments = [
            value
            for key, value in state["optimizer"].items()
            if key.startswith(f"state.{name}.") and value.shape == state[name].shape
        ]
        assert len(moments) == moments_each
        for tensor in (model_tensors(state)[name], *moments):
            largest = tensor.unflatten(0, (-1, HEAD_DIM)).abs().amax((1, 2))
            is_dead = torch.tensor([block in dead for block in range(len(largest))])
            assert torch.equal(largest == 0, is_dead), name


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(4, (), id="fsdp-4"),
        pytest.param(4, HSDP, id="hsdp-2x2"),
        pytest.param(2, DDP, id="ddp-2"),
        pytest.param(2, ("--activation_checkpoint.mode", "full", *ONE_MICROBATCH), id="full-ac"),
        pytest.param(2, ("--activation_checkpoint.mode", "selective", *BFLOAT16), id="selective-ac-bfloat16"),
        pytest.param(2, ("--optimizer.name", "SGD", "--optimizer.lr", "0.1"), id="sgd"),
    ],
)
def test_dead_rows_and_moments_stay_zero_for_fifty_steps(
    tmp_path: Path, corpus_overrides: tuple[str, ...], ranks: int, options: tuple[str, ...]
) -> None:
    # two microbatches a step on each of two and of four ranks, unless the options say otherwise
    batch = ("--training.local_batch_size", str(4 // ranks))
    run = train(tmp_path, *corpus_overrides, *MODEL, *STEPS, *batch, *options, ranks=ranks)
    assert_dead_stay_zero(run, moments_each=1 if "SGD" in options else 2)


def test_generated_code_keeps_them_zero_and_gives_the_losses_of_eager_code(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    options = (*corpus_overrides, *MODEL, *STEPS)
    compiled = train(tmp_path / "compiled", *options, "--compile.enable", "true", ranks=2)
    assert_dead_stay_zero(compiled)
    early_end = ("--training.steps", "8", "--lr_scheduler.total_steps", "52")
    eager = train(tmp_path / "eager", *options, *early_end, ranks=2).losses()
    assert len(eager) == 8
    for step, loss in eager.items():
        assert compiled.losses()[step] == pytest.approx(loss, abs=2e-4), step
