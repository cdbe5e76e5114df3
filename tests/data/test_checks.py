"""What would stop a run in the middle of its data is known before anything is built, all of it at once."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from saf_titan.config import RunConfig, load_config
from saf_titan.data.checks import inspect_data

T = 8


def config(folder: Path, *words: str) -> RunConfig:
    """Steps of 4 sequences of 8 tokens, with a freeze and validation."""
    options = {
        "data.path": folder,
        "model.flavor": "debug",
        "training.seq_len": T,
        "training.local_batch_size": 4,
        "training.steps": 100,
        "lr_scheduler.warmup_steps": 10,
        "saf.enable": "true",
        "saf.calibration_sequences": 4,
        "validator.enable": "true",
        "validator.tokens": 3 * T,
    }
    return load_config(None, [*(f"--{key}={value}" for key, value in options.items()), *words])


@pytest.fixture
def folder(write_corpus) -> Path:
    # 50 windows to train on, 9 held out, of which 4 are for calibration
    return write_corpus(list(range(1, 50 * T + 2)), list(range(1000, 1000 + 9 * T + 1)), shard_tokens=50)


def faults(run: RunConfig, world_size: int = 1) -> dict[str, str]:
    _, problems = inspect_data(run, world_size)
    return {problem.key: problem.message for problem in problems}


def test_lines_say_what_is_read(folder: Path) -> None:
    lines, problems = inspect_data(config(folder), 1)
    assert problems == []
    assert lines == [
        f"{folder}: 401 training tokens, 73 held out; vocabulary 5,000, end-of-text id 4999",
        "held-out tokens: the val split of manifest.json; windows are cut across the borders of documents",
        "8 epochs over the training tokens (50 windows of 8)",
        "validation on 24 tokens, the same ones each time and on any number of ranks",
    ]
    # twice the ranks, twice the tokens of a step
    assert inspect_data(config(folder), 2)[0][2].startswith("16 epochs")
    (more,) = [line for line in inspect_data(config(folder, "--validator.tokens=4000"), 1)[0] if "validation" in line]
    assert "validation on 40 tokens" in more
    assert "all there are of the validator.tokens = 4,000 asked for" in more


def test_files_of_others_are_described(tmp_path: Path) -> None:
    for name in ("train", "val", "other"):
        np.arange(1000, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    lines, problems = inspect_data(config(tmp_path, "--data.vocab_size=50257"), 1)
    assert problems == []
    assert "vocabulary 50,257, no end-of-text id is known" in lines[0]
    assert "held-out tokens: val.bin;" in lines[1]
    assert lines[2] == "not read, as their names have neither train nor val: other.bin"


def test_one_document_without_a_border_can_be_validated_and_calibrated_on(tmp_path: Path) -> None:
    np.arange(2000, dtype="<u2").tofile(tmp_path / "shakespeare.bin")
    lines, problems = inspect_data(config(tmp_path / "shakespeare.bin", "--data.vocab_size=2000"), 1)
    assert problems == []
    assert "1,800 training tokens, 200 held out" in lines[0]
    assert "the last tenth of the ids" in lines[1]


@pytest.mark.parametrize(
    ("words", "world_size", "key", "message"),
    [
        (("--training.seq_len=500",), 1, "data.path", "'validation' has 73 tokens, and training.seq_len = 500 needs"),
        (("--model.vocab_size=4000",), 1, "model.vocab_size", "has a vocabulary of 5000; set it to 5000 or more"),
        (("--data.vocab_size=7",), 1, "data.path", "data.vocab_size is 7, and"),
        (("--saf.calibration_sequences=5",), 1, "saf.calibration_sequences", "has 4 windows of 8 tokens; lower it"),
        ((), 3, "saf.calibration_sequences", "becomes 6 on this number of ranks, but the calibration half"),
    ],
)
def test_what_would_stop_the_run(folder: Path, words: tuple[str, ...], world_size: int, key: str, message: str) -> None:
    assert message in faults(config(folder, *words), world_size)[key]


def test_all_problems_come_at_once_and_name_their_remedy(write_corpus) -> None:
    folder = write_corpus(list(range(8)), [1, 2, 3])
    _, problems = inspect_data(config(folder, "--model.vocab_size=100"), 1)
    assert [problem.key for problem in problems] == ["model.vocab_size", *["data.path"] * 3]
    assert "tokenize with more --val-tokens" in problems[-1].message
    # held-out tokens are asked for only where they are used
    found = faults(config(folder, "--saf.enable=false", "--validator.enable=false"))
    assert list(found) == ["data.path"]
    assert "'train' has 8 tokens" in found["data.path"]


def test_data_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    (folder / "train_000003.bin").unlink()
    assert "train_000003.bin: cannot be read" in faults(config(folder))["data.path"]
    lines, problems = inspect_data(config(tmp_path / "nowhere"), 1)
    assert lines == []
    assert "data.path must be" in problems[0].message


def test_ids_beyond_the_vocabulary_and_digests_that_are_not_there(tmp_path: Path) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    found = faults(config(tmp_path, "--data.vocab_size=900", "--data.verify=true"))
    assert "train.bin: id 900 at position 900 lies outside the vocabulary of 900" in found["data.path"]
    assert "has no manifest.json with digests to compare; set it to false" in found["data.verify"]


def test_the_first_look_needs_no_torch() -> None:
    code = "import sys, saf_titan.data.checks, saf_titan.train; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
