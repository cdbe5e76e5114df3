"""A run that starts from a folder of transformers: exported, imported at the start, and trained on.

Covers run/initial_weights.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saf_titan.hf.__main__ import main as hf
from saf_titan.run.resume import read_freeze
from saf_titan.saf.install.checkpoint import model_tensors, read_checkpoint
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed

WEIGHTS = ("--checkpoint.initial_load_model_only", "true")


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """A frozen run, whose last checkpoint is of step 8."""
    return train(tmp_path_factory.mktemp("parent"), *corpus_overrides, ranks=1)


@pytest.fixture(scope="module")
def exported(parent: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    assert hf(["export", str(parent.folder / "checkpoint/step-8"), "--out", str(folder)]) == 0
    return folder


def test_it_starts_with_the_bytes_and_the_plan_of_the_folder(
    parent: Run, exported: Path, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    # a rate of zero: nothing but the plan could change the weights
    options = (*corpus_overrides, *WEIGHTS, "--optimizer.lr", "1e-12", "--saf.enable", "false")
    options = (*options, "--optimizer.weight_decay", "0", "--training.steps", "2")
    from_folder = ("--checkpoint.initial_load_path", str(exported))
    run = train(tmp_path / "run", *options, *from_folder, ranks=2)
    assert run.output.count("converted to a checkpoint in") == 1
    before, after = parent.folder / "checkpoint/step-8", tmp_path / "run/checkpoint/step-2"
    plans = [read_freeze(folder).plan for folder in (before, after)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].digest == plans[1].digest
    old, new = (model_tensors(read_checkpoint(folder)) for folder in (before, after))
    assert old.keys() == new.keys()
    for name, weight in old.items():
        torch.testing.assert_close(new[name], weight, rtol=1e-5, atol=1e-8)
    # from our own checkpoint the losses are the same
    from_checkpoint = ("--checkpoint.initial_load_path", str(before))
    assert train(tmp_path / "other", *options, *from_checkpoint, ranks=2).losses() == run.losses()
    # the run itself keeps the path that it was given, and goes on from its own checkpoint
    assert str(exported) in (tmp_path / "run/config.toml").read_text()
    longer = train(tmp_path / "run", *options, *from_folder, "--training.steps", "3", ranks=1)
    assert list(longer.losses()) == [1, 2, 3]
    assert "to a checkpoint in" not in longer.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "checkpoint.initial_load_model_only = true"),
        ((*WEIGHTS, "--model.num_layers", "3"), "num_hidden_layers"),
    ],
)
def test_what_cannot_start_is_refused_with_the_remedy(
    options: tuple[str, ...], message: str, exported: Path, tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    start = ("--checkpoint.initial_load_path", str(exported))
    refused = train(tmp_path, *corpus_overrides, *start, *options, ranks=1, status=1)
    assert message in refused.output
    assert "Traceback" not in refused.output
