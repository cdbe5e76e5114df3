"""A resumed run continues exactly where the uninterrupted one would be.

The runs here are sharded by FSDP and have biases; those of most other tests have none. Covers run/build.py,
run/trainer.py.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from torch.distributed.checkpoint import FileSystemReader

from saf_titan.run.resume import read_freeze
from saf_titan.saf.install.checkpoint import read_checkpoint
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed

BIASES = ("--model.bias", "true")
HEAD_DIM = 8


def resume(whole: Run, folder: Path, step: int, *overrides: str, ranks: int = 2) -> Run:
    """Continue from checkpoint ``step`` of a finished run, in a folder of its own."""
    shutil.copytree(whole.folder / "checkpoint" / f"step-{step}", folder / "checkpoint" / f"step-{step}")
    return train(folder, *BIASES, *overrides, ranks=ranks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """The uninterrupted run on two ranks."""
    return train(tmp_path_factory.mktemp("whole"), *BIASES, *corpus_overrides, ranks=2)


def test_the_freeze_happens_once_with_validation_around_it(whole: Run) -> None:
    assert [row["static_heads"] for row in whole.kind("train")] == [0, 0, 0, 0, 2, 2, 2, 2]
    (freeze,) = whole.kind("freeze")
    assert (freeze["step"], freeze["heads"]) == (4, 2)
    phases = [(row["phase"], row["step"]) for row in whole.kind("validation")]
    assert phases == [("scheduled", 1), ("before_freeze", 4), ("after_freeze", 4), ("final", 8)]
    losses = whole.losses()
    assert list(losses) == list(range(1, 9))
    assert losses[8] < losses[1] - 0.5


def test_biases_are_trained_and_those_of_static_heads_are_zero_with_their_moments(whole: Run) -> None:
    state = read_checkpoint(whole.folder / "checkpoint" / "step-8")
    plan = read_freeze(whole.folder / "checkpoint" / "step-8").plan
    assert plan is not None
    for layer in range(2):
        static = {head.head for head in plan.layers().get(layer, ())}
        for kind in ("wq", "wk", "wv"):
            name = f"layers.{layer}.attention.qkv_linear.{kind}.bias"
            moments = [value for key, value in state["optimizer"].items() if key.startswith(f"state.{name}.exp_avg")]
            assert len(moments) == 2
            for tensor in (state[name], *moments):
                is_zero = (tensor.view(-1, HEAD_DIM) == 0).all(1).tolist()
                assert is_zero == [kind != "wv" and head in static for head in range(4)], (name, is_zero)


@pytest.mark.parametrize("step", [2, 4, 6], ids=["before", "at", "after"])
def test_resume_is_bit_identical(whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], step: int) -> None:
    resumed = resume(whole, tmp_path, step, *corpus_overrides)
    expected = {at: loss for at, loss in whole.losses().items() if at > step}
    assert resumed.losses() == expected
    final = [row["loss"] for row in (whole.kind("validation")[-1], resumed.kind("validation")[-1])]
    assert final[0] == final[1]
    plans = [read_freeze(run.folder / "checkpoint" / "step-8").plan for run in (whole, resumed)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].digest == plans[1].digest


@pytest.mark.parametrize(("saved_on", "ranks"), [(2, 1), (2, 4), (4, 2)])
def test_resume_at_another_world_size_sees_the_same_data_and_heads(
    whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], saved_on: int, ranks: int
) -> None:
    source = whole if saved_on == 2 else train(tmp_path / "source", *BIASES, *corpus_overrides, ranks=saved_on)
    resumed = resume(source, tmp_path / "resumed", 6, *corpus_overrides, ranks=ranks)
    assert list(resumed.losses()) == [7, 8]
    for step, loss in resumed.losses().items():
        # the same sequences, whose gradients are added up in another order: float32 rounding, grown by AdamW
        assert loss == pytest.approx(source.losses()[step], abs=2e-5), step
    assert [row["static_heads"] for row in resumed.kind("train")] == [2, 2]
    final = [run.kind("validation")[-1] for run in (source, resumed)]
    assert final[1]["loss"] == pytest.approx(final[0]["loss"], abs=2e-5)
    assert final[1]["perplexity"] == pytest.approx(math.exp(final[1]["loss"]))
    plans = [read_freeze(run.folder / "checkpoint" / "step-8").plan for run in (source, resumed)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].digest == plans[1].digest


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_world_size_derives_the_same_heads(
    whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], ranks: int
) -> None:
    resumed = resume(whole, tmp_path, 4, *corpus_overrides, ranks=ranks)
    mine, theirs = (read_freeze(run.folder / "checkpoint" / "step-8").plan for run in (resumed, whole))
    assert mine is not None
    assert theirs is not None
    assert [(head.layer, head.head) for head in mine.heads] == [(head.layer, head.head) for head in theirs.heads]


def test_a_checkpoint_before_the_freeze_has_stock_keys_only(whole: Run) -> None:
    def keys(step: int) -> set[str]:
        reader = FileSystemReader(whole.folder / "checkpoint" / f"step-{step}")
        return set(reader.read_metadata().state_dict_metadata)

    assert keys(6) - keys(2) == {"train_state.saf_plan"}
    assert keys(2) - keys(6) == set()


def test_tokens_are_counted_over_a_change_of_world_size_and_batch(
    whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    half = ("--training.global_batch_size", "4")
    resumed = resume(whole, tmp_path, 6, *corpus_overrides, *half, ranks=1)
    assert [row["tokens"] for row in resumed.kind("train")] == [(6 * 8 + 4) * 64, (6 * 8 + 8) * 64]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--model.num_layers", "1", "model.num_layers was 2 and is 1"),
        ("--model.num_heads", "2", "model.num_heads was 4 and is 2"),
        ("--model.rope_theta", "20000", "model.rope_theta was 10000.0 and is 20000.0"),
        ("--optimizer.name", "SGD", "saved with another optimizer"),
        ("--checkpoint.load_step", "2", "checkpoint.load_step = 2, but"),
        ("--data.seed", "5", "data.seed was 1337"),
    ],
)
def test_a_resume_that_would_be_another_run_is_refused(
    whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], option: str, value: str, message: str
) -> None:
    checkpoints = tmp_path / "checkpoint"
    for step in (2, 6):
        shutil.copytree(whole.folder / "checkpoint" / f"step-{step}", checkpoints / f"step-{step}")
    refused = train(tmp_path, *BIASES, *corpus_overrides, option, value, ranks=1, status=1)
    assert message in refused.output, refused.output[-3000:]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-2", "step-6"]


@pytest.mark.parametrize("damage", ["cut", "empty", "data", "byte"])
def test_a_damaged_checkpoint_is_named(
    whole: Run, tmp_path: Path, corpus_overrides: tuple[str, ...], damage: str
) -> None:
    folder = tmp_path / "checkpoint" / "step-6"
    shutil.copytree(whole.folder / "checkpoint" / "step-6", folder)
    victim = folder / ("__0_0.distcp" if damage in ("data", "byte") else ".metadata")
    content = bytearray(victim.read_bytes())
    if damage == "byte":
        content[len(content) // 2] ^= 1
    else:
        del content[0 if damage == "empty" else len(content) // 2 :]
    victim.write_bytes(content)
    refused = train(tmp_path, *BIASES, *corpus_overrides, ranks=1, status=1)
    assert "is damaged" in refused.output
    assert str(tmp_path) in refused.output
    assert "remove it to go on from an older one" in refused.output
