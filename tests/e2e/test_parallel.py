"""The same run under other shardings, activation checkpointing, compile, optimizers and positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.runs import GRAPHS_ALONE, Run, train

# an early end that leaves the learning-rate schedule as it is
SCHEDULE = ("--lr_scheduler.total_steps", "8")

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    return train(tmp_path_factory.mktemp("plain"), *corpus_overrides, ranks=2)


def assert_same_run(run: Run, plain: Run, tolerance: float) -> None:
    losses = run.losses()
    assert list(losses) == list(range(1, 9))
    for step, loss in losses.items():
        assert loss == pytest.approx(plain.losses()[step], abs=tolerance), step
    assert run.kind("freeze")[0]["heads"] == 2


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_activation_checkpointing_changes_no_bit(
    plain: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], mode: str
) -> None:
    run = train(tmp_path, *corpus_overrides, "--activation_checkpoint.mode", mode, ranks=2)
    assert_same_run(run, plain, tolerance=0.0)


def test_hsdp_on_four_ranks(plain: Run, tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    sharding = ("--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "2")
    assert_same_run(train(tmp_path, *corpus_overrides, *sharding, ranks=4), plain, tolerance=2e-5)


def test_autocast_under_compile_and_checkpointing(
    plain: Run, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    autocast = ("--training.mixed_precision_param", "bfloat16_autocast", "--compile.enable", "true", *GRAPHS_ALONE)
    run = train(tmp_path, *corpus_overrides, *autocast, "--activation_checkpoint.mode", "selective", ranks=2)
    assert "residual stream and norms in float32" in run.output
    # matrix products are rounded to eight bits
    assert_same_run(run, plain, tolerance=0.02)
    assert run.losses() != plain.losses()


def test_learned_positions_sgd_and_a_qk_ratio(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    run = train(
        tmp_path,
        *corpus_overrides,
        *("--model.position", "learned", "--optimizer.name", "SGD", "--optimizer.lr", "0.5"),
        *("--circuits.qk_lr_ratio", "4", "--saf.selector", "kl"),
        ranks=1,
    )
    losses = run.losses()
    assert losses[8] < losses[1] - 0.1
    for row in run.kind("train"):
        assert row["lr/qk"] == pytest.approx(4 * row["lr/ov"])
    assert [row["static_heads"] for row in run.kind("train")][-1] == 2


def test_async_checkpoints_tensorboard_and_profiler(
    plain: Run, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    options = (
        *("--checkpoint.async_mode", "async", "--metrics.enable_tensorboard", "true"),
        *("--profiler.enable_profiling", "true", "--profiler.profile_freq", "4"),
    )
    first = train(tmp_path, *corpus_overrides, *options, "--training.steps", "5", *SCHEDULE, ranks=2)
    assert max(first.losses()) == 5
    run = train(tmp_path, *corpus_overrides, *options, ranks=2)
    assert run.kind("resume")[0]["step"] == 5
    assert_same_run(run, plain, tolerance=0.0)
    assert list(tmp_path.glob("tb/*/events.out.tfevents.*"))
    assert list(tmp_path.glob("profiling/traces/*/rank0_trace.json.gz"))


def test_tensor_parallelism_is_refused_with_the_reason(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    run = train(tmp_path, *corpus_overrides, "--parallelism.tensor_parallel_degree", "2", ranks=2, status=1)
    assert "tensor_parallel_degree" in run.output, run.output[-6000:]
