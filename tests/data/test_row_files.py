"""Rows that rust_data.gen wrote, as training data. Covers data/row_folder.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rust_data.gen import main as gen
from saf_titan.config import ConfigError, RunConfig, load_config, to_toml
from saf_titan.config.own_sections import DataSection
from saf_titan.data import row_folder
from saf_titan.data.checks import inspect_data
from saf_titan.data.generate import IGNORE_INDEX
from saf_titan.data.row_files import RowFileLoader
from saf_titan.data.sources import training_loader, validation_loader
from saf_titan.study.__main__ import _require_start
from saf_titan.study.load import load_study
from saf_titan.study.plan import StudyPlan
from saf_titan.train import main as train

T = 24
ROWS = {"train": 21, "test": 9}
MQAR = ("mqar", "--vocab-size", "64", "--pairs", "3", "--length", str(T))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards of ten rows of MQAR; the last of the train split holds one."""
    write(tmp_path / "rows", *MQAR, "--shard-rows", "10")
    return tmp_path / "rows"


def write(folder: Path, *words: str) -> None:
    splits = [word for name, rows in ROWS.items() for word in ("--split", f"{name}={rows}")]
    assert gen([*words, *splits, "--out", str(folder)]) == 0


def arrays(folder: Path, split: str) -> dict[str, np.ndarray]:
    files = [np.load(path) for path in sorted(folder.glob(f"{split}_*.npz"))]
    return {name: np.concatenate([file[name] for file in files]) for name in files[0]}


def run_config(folder: Path, *words: str) -> RunConfig:
    fixed = ["--data.kind=mqar", "--data.from_files=true", f"--data.path={folder}", "--data.pairs=3"]
    return load_config(
        None, [*fixed, f"--training.seq_len={T}", "--training.steps=5", "--lr_scheduler.warmup_steps=0", *words]
    )


def batches(config: RowFileLoader.Config, *, ranks: int, batch: int, number: int) -> torch.Tensor:
    """Inputs and labels of the first batches of all ranks, in the order of the cursor, [sequences, 2, T]."""
    loaders = [
        iter(config.build(dp_world_size=ranks, dp_rank=rank, seq_len=T, local_batch_size=batch))
        for rank in range(ranks)
    ]
    steps = [next(loader) for _ in range(number) for loader in loaders]
    return torch.cat([torch.stack([inputs["input"], labels], dim=1) for inputs, labels in steps])


def test_every_row_comes_once_an_epoch_on_any_number_of_ranks(folder: Path) -> None:
    config = training_loader(run_config(folder))
    assert isinstance(config, RowFileLoader.Config)
    seen = batches(config, ranks=1, batch=7, number=6)
    assert torch.equal(batches(config, ranks=7, batch=1, number=6), seen)
    stored = arrays(folder, "train")
    rows = np.stack([stored["inputs"], stored["labels"]], axis=1)
    for epoch in (seen[:21], seen[21:]):
        assert sorted(epoch.tolist()) == sorted(rows.tolist())
    assert not torch.equal(seen[:21], seen[21:])
    in_order = batches(replace(config, shuffle=False), ranks=1, batch=21, number=1)
    np.testing.assert_array_equal(in_order, rows)


def test_calibration_and_validation_share_the_held_out_rows(folder: Path) -> None:
    run = run_config(folder, "--validator.examples=4")
    training, validation = training_loader(run), validation_loader(run)
    assert isinstance(training, RowFileLoader.Config)
    assert isinstance(validation, RowFileLoader.Config)
    stored = arrays(folder, "test")["inputs"].tolist()
    calibration = batches(training.for_calibration(3), ranks=1, batch=4, number=1)[:, 0].tolist()
    assert sorted(calibration) == sorted(stored[:4])
    loader = replace(validation, infinite=False).build(dp_world_size=1, dp_rank=0, seq_len=T, local_batch_size=2)
    assert [row for inputs, _ in loader for row in inputs["input"].tolist()] == stored[4:8]


def test_class_tokens_are_asked_for_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "rows", "class-tokens", "--classes", "3", "--distinct", "2", "--common", "4", "--counts", "3,4")
    data = DataSection(
        kind="class_tokens", classes=3, distinct=2, common=4, from_files=True, path=str(tmp_path / "rows")
    )
    config = RowFileLoader.Config(data=data, shuffle=False)
    loader = config.build(dp_world_size=1, dp_rank=0, seq_len=8, local_batch_size=21)
    inputs, labels = next(iter(loader))
    stored = arrays(tmp_path / "rows", "train")
    np.testing.assert_array_equal(inputs["input"], stored["tokens"])
    assert (labels[:, :-1] == IGNORE_INDEX).all()
    # ids: 6 distinct, 4 common, one query, and then the answers
    np.testing.assert_array_equal(labels[:, -1], 11 + stored["labels"])


def test_a_saved_cursor_belongs_to_its_rows(folder: Path, tmp_path: Path) -> None:
    config = training_loader(run_config(folder))

    def build(config: Any) -> Any:
        return config.build(dp_world_size=1, dp_rank=0, seq_len=T, local_batch_size=4)

    first = build(config)
    steps = iter(first)
    next(steps)
    state = first.state_dict()
    expected = next(steps)
    later = build(config)
    later.load_state_dict(state)
    assert torch.equal(next(iter(later))[0]["input"], expected[0]["input"])
    write(tmp_path / "other", *MQAR, "--seed", "1")
    other = training_loader(run_config(tmp_path / "other"))
    with pytest.raises(ValueError, match="holds other rows than the run was trained on"):
        build(other).load_state_dict(state)


def test_the_look_says_what_is_read(folder: Path) -> None:
    lines, problems = inspect_data(run_config(folder, "--validator.enable=true", "--data.verify=true"), 1)
    assert not problems
    assert lines == [
        f"{folder}: 21 rows of {T} tokens to train on, vocabulary 64",
        "1.9 epochs over them",
        "validation on 5 rows of the second half of split test",
    ]


@pytest.mark.parametrize(("rank", "times"), [(None, 1), ("0", 1), ("1", 0)])
def test_one_rank_of_a_machine_compares_the_digests(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rank: str | None, times: int
) -> None:
    read = count_digests(monkeypatch)
    monkeypatch.setattr("saf_titan.run.launch.launch", lambda run: 0)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    (folder.parent / "base.toml").write_text(to_toml(run_config(folder, "--data.verify=true")))
    assert train([f"--config={folder.parent / 'base.toml'}"]) == 0
    assert sorted(read) == sorted(times * [str(path) for path in folder.glob("*.npz")])


def test_a_study_compares_the_digests_of_a_folder_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_digests(monkeypatch)
    path = folder.parent / "study.toml"
    (folder.parent / "base.toml").write_text(to_toml(run_config(folder)))
    verified = "".join(f'[[arm]]\nname = "{name}"\ndata.verify = true\n' for name in "abc")
    path.write_text(f'config = "{folder.parent / "base.toml"}"\n[[arm]]\nname = "unverified"\n{verified}')
    _require_start(StudyPlan(load_study(path), folder.parent / "out"))
    assert sorted(read) == sorted(str(path) for path in folder.glob("*.npz"))
    # and a damaged one is reported by the arms that ask for it
    shard = next(folder.glob("test_*.npz"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    with pytest.raises(ConfigError, match=r"is not what the manifest says: test_000000\.npz"):
        _require_start(StudyPlan(load_study(path), folder.parent / "out"))


def count_digests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that every later call of `sha256` adds its file to."""
    read: list[str] = []
    sha256 = row_folder._native.sha256

    def counted(path: Path) -> str:
        read.append(str(path))
        return str(sha256(path))

    monkeypatch.setattr(row_folder, "_native", SimpleNamespace(sha256=counted))
    return read


@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (("--data.pairs=4",), "data.pairs", "have 3; set it to 3"),
        (("--training.seq_len=32",), "training.seq_len", "have 24 tokens; set it to 24"),
        (("--model.vocab_size=63",), "model.vocab_size", "has a vocabulary of 64; set it to 64 or more"),
        (("--data.vocab_size=128",), "data.vocab_size", "have 64; set it to 64"),
        (("--saf.enable=true", "--saf.calibration_sequences=5"), "saf.calibration_sequences", "held-out rows"),
        (("--data.kind=class_tokens", "--data.pairs=8"), "data.path", "holds rust_data.mqar, and data.kind"),
    ],
)
def test_what_does_not_fit_is_said_before_the_start(
    folder: Path, words: tuple[str, ...], key: str, message: str
) -> None:
    _, (problem,) = inspect_data(run_config(folder, *words), 1)
    assert problem.key == key
    assert message in problem.message


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no manifest", "cannot be read"),
        ("missing shard", "cannot be read"),
        ("cut", "is damaged"),
        ("another shape", "by the manifest they should be"),
        ("no held-out rows", "make them with --split test=ROWS"),
        ("ids", "ids beyond the vocabulary of 8"),
        ("changed", "is not what the manifest says: test_000000.npz"),
    ],
)
def test_damage_is_said_before_the_start(folder: Path, fault: str, message: str) -> None:
    manifest, shard = folder / "manifest.json", folder / "test_000000.npz"
    root = json.loads(manifest.read_text())
    if fault == "no manifest":
        manifest.unlink()
    elif fault == "missing shard":
        shard.unlink()
    elif fault == "cut":
        shard.write_bytes(shard.read_bytes()[:-40])
    elif fault == "another shape":
        np.savez(shard, inputs=np.zeros((9, T - 1), np.int32), labels=np.zeros((9, T), np.int32))
    elif fault == "no held-out rows":
        del root["splits"]["test"]
    elif fault == "ids":
        root["config"]["vocab_size"] = 8
    else:
        stored = dict(np.load(shard))
        stored["inputs"][0, 0] += 1
        np.savez(shard, **stored)
    if fault != "no manifest":
        manifest.write_text(json.dumps(root))
    words = ("--validator.enable=true", "--data.verify=true", "--data.vocab_size=0")
    _, problems = inspect_data(run_config(folder, *words), 1)
    assert message in problems[0].message
