"""Training on generated sequences and on files of them: ranks, resume, freeze, accuracy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rust_data.gen import main as gen
from saf_titan.report.run_log import read_run
from saf_titan.report.write import write_report
from tests.e2e.runs import train

pytestmark = pytest.mark.distributed

MQAR = (
    *("--data.kind", "mqar", "--data.pairs", "3", "--data.vocab_size", "32", "--training.seq_len", "16"),
    *("--validator.lengths", "[12, 16]", "--validator.pairs", "[2, 3]", "--validator.examples", "5"),
)
CLASSES = (
    *("--data.kind", "class_tokens", "--data.classes", "2", "--data.common", "4", "--data.from_files", "true"),
    *("--training.seq_len", "8", "--validator.examples", "64"),
)


def test_mqar_trains_freezes_and_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    two = train(tmp_path / "two", *MQAR, ranks=2)
    one = train(tmp_path / "one", *MQAR, ranks=1)
    # the mean over labelled tokens of all ranks and microbatches: the order of the sum alone differs
    assert one.losses() == pytest.approx(two.losses(), rel=1e-4)
    assert [row["heads"] for row in two.kind("freeze")] == [2]
    rows = two.kind("accuracy")
    sets = [(12, 2), (12, 3), (16, 2), (16, 3)]
    assert [(row["length"], row["pairs"]) for row in rows if row["phase"] == "final"] == sets
    assert {row["phase"] for row in rows} == {"scheduled", "before_freeze", "after_freeze", "final"}
    assert {row["examples"] for row in rows} == {5}
    for mine, other in zip(rows[:8], one.kind("accuracy")[:8], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)

    # where the questions look, on any number of ranks: some value of the context
    looks, alone = two.kind("relevance"), one.kind("relevance")
    assert [(row["step"], row["phase"], row["length"], row["pairs"]) for row in looks] == [
        (row["step"], row["phase"], row["length"], row["pairs"]) for row in rows
    ]
    for mine, other in zip(looks[:8], alone[:8], strict=True):
        assert mine["questions"] == other["questions"] == 5 * mine["pairs"]
        assert np.array(mine["mass"]) == pytest.approx(np.array(other["mass"]), abs=1e-4)
        assert np.sum(mine["dtap"], axis=1).tolist() == [mine["questions"]] * len(mine["mass"])
        assert 0 < np.min(mine["mass"]) < np.max(mine["mass"]) < 1

    at = tmp_path / "resumed"
    shutil.copytree(two.folder / "checkpoint" / "step-6", at / "checkpoint" / "step-6")
    resumed = train(at, *MQAR, ranks=2)
    assert resumed.losses() == {step: loss for step, loss in two.losses().items() if step > 6}
    assert len(read_run(two.folder).accuracies) == len(rows)
    page = write_report(two.folder).read_text()
    assert "16 tokens, 3 pairs" in page
    assert "(the value that stands behind the key that is asked for)" in page


def test_class_tokens_are_learnt_from_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    words = ("class-tokens", "--classes", "2", "--common", "4", "--counts", "3,4", "--out", str(corpus))
    assert gen([*words, "--split", "train=1000", "--split", "test=128"]) == 0
    options = (
        *CLASSES,
        "--data.path",
        str(corpus),
        "--training.steps",
        "60",
        "--saf.enable",
        "false",
        "--validator.freq",
        "60",
    )
    run = train(
        tmp_path / "run", *options, "--training.global_batch_size", "32", "--training.local_batch_size", "16", ranks=2
    )
    first, last = run.kind("accuracy")[0], run.kind("accuracy")[-1]
    assert first["accuracy"] < 0.9
    assert last["accuracy"] > 0.95
    assert last["accuracy"] == last["example_accuracy"] == last["all_right"]
    # a model that is right because of these tokens looks at them
    looks = run.kind("relevance")
    assert np.max(looks[-1]["mass"]) > np.max(looks[0]["mass"])


def test_lengths_beyond_the_patterns_of_a_checkpoint_are_refused(tmp_path: Path) -> None:
    parent = train(tmp_path / "parent", *MQAR, ranks=1)
    branch = (
        *("--checkpoint.initial_load_path", str(parent.folder / "checkpoint" / "step-8")),
        *("--checkpoint.initial_load_model_only", "true", "--saf.enable", "false", "--training.steps", "2"),
        *("--validator.freq", "2"),
    )
    longer = train(tmp_path / "longer", *MQAR, *branch, "--validator.lengths", "[24]", ranks=1, status=1)
    assert "validator.lengths has 24, but the static heads of" in longer.output
    # a live parent knows no limit
    assert train(tmp_path / "live", *MQAR, "--saf.enable", "false", "--validator.lengths", "[24]", ranks=1).status == 0
