"""A new run from the weights of another: its static heads stay, everything else begins anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saf_titan.run.resume import read_freeze
from tests.data.corpus import write_corpus
from tests.e2e.conftest import VOCAB
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """A frozen run, whose last checkpoint is of step 8."""
    budget = ("--saf.schedule", "loss_budget", "--saf.increment", "0.25", "--saf.loss_budget", "1.0")
    return train(tmp_path_factory.mktemp("parent"), *corpus_overrides, *budget, ranks=1)


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    tokens = np.random.default_rng(1).integers(VOCAB // 2, size=9_000)
    folder = tmp_path_factory.mktemp("other")
    write_corpus(folder, train=tokens[:6_000], val=tokens[6_000:], vocab_size=VOCAB, eot=VOCAB - 1)
    return ("--data.path", str(folder))


def start_from(parent: Run) -> tuple[str, ...]:
    return ("--checkpoint.initial_load_path", str(parent.folder / "checkpoint" / "step-8"))


WEIGHTS = ("--checkpoint.initial_load_model_only", "true")


def test_fine_tuning_on_other_data_keeps_the_static_heads(
    parent: Run, tmp_path: Path, other_corpus: tuple[str, ...]
) -> None:
    options = (*other_corpus, *start_from(parent), *WEIGHTS, "--training.seq_len", "32", "--saf.enable", "false")
    run = train(tmp_path, *options, "--training.steps", "4", "--lr_scheduler.total_steps", "8", ranks=2)
    assert [row["static_heads"] for row in run.kind("train")] == [2] * 4
    assert [row["tokens"] for row in run.kind("train")] == [step * 8 * 32 for step in (1, 2, 3, 4)]
    plans = [
        read_freeze(folder).plan for folder in (parent.folder / "checkpoint/step-8", tmp_path / "checkpoint/step-4")
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].digest == plans[1].digest
    # the same command goes on from its own checkpoint
    assert list(train(tmp_path, *options, ranks=2).losses()) == list(range(1, 9))


def test_without_the_choice_other_data_are_refused_and_it_is_named(
    parent: Run, tmp_path: Path, other_corpus: tuple[str, ...]
) -> None:
    refused = train(tmp_path, *other_corpus, *start_from(parent), "--training.steps", "12", ranks=1, status=1)
    assert "checkpoint.initial_load_model_only = true" in refused.output


def test_a_checkpoint_of_the_stock_model_gives_its_weights(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    model = ("--model.family", "llama3", "--model.flavor", "debugmodel", "--model.num_layers", "2")
    options = (*corpus_overrides, *model, "--model.num_heads", "0", "--model.dim", "0", "--optimizer.lr", "1e-3")
    fused = ("--saf.enable", "false", "--model.fuse_qkv", "true")
    stock = train(tmp_path / "stock", *options, *fused, ranks=2)
    run = train(tmp_path / "split", *options, *start_from(stock), *WEIGHTS, ranks=2)
    assert [row["static_heads"] for row in run.kind("train")][-1] == 8
    # the batch of step 1 again, with the weights of step 8
    assert run.losses()[1] < stock.losses()[1] - 0.5
