"""A checkpoint that changed on disk is found out, and what changed is named."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from saf_titan.run.resume import read_freeze
from saf_titan.saf.__main__ import main
from saf_titan.saf.install.checkpoint import load_weights, read_checkpoint, write_checkpoint
from saf_titan.saf.install.integrity import check_stream, damages, newest_inside, read_index, require_complete

STATE = {
    "weight": torch.arange(3000.0).view(3, 1000),
    "optimizer": {"state.weight.exp_avg": torch.ones(3, 1000), "state.step": torch.tensor(4.0)},
    "train_state": {"step": 4, "saf_plan": b"a plan"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(STATE, tmp_path / "step-4")
    return tmp_path / "step-4"


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def same(state: object, other: object) -> bool:
    if isinstance(state, dict):
        return isinstance(other, dict) and state.keys() == other.keys() and all(same(state[k], other[k]) for k in state)
    return torch.equal(state, other) if isinstance(state, torch.Tensor) else state == other


def content(folder: Path, name: str) -> Iterator[int]:
    """Positions in the data file that hold the elements of a tensor."""
    (entry,) = (entry for index, entry in read_index(folder).storage_data.items() if index.fqn == name)
    data = (folder / entry.relative_path).read_bytes()[entry.offset : entry.offset + entry.length]
    raw = torch.load(io.BytesIO(data)).numpy().tobytes()
    start = entry.offset + data.index(raw)
    return iter(range(start, start + len(raw)))


def test_a_sound_checkpoint_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(damages(folder)) == []
    assert main(["verify", str(folder)]) == 0
    assert "holds what was written" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["weight", "optimizer.state.weight.exp_avg", "optimizer.state.step"])
def test_a_flipped_bit_of_a_tensor_is_not_loaded(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder / "__0_0.distcp"
    flip(data, next(content(folder, name)))
    with pytest.raises(ValueError, match=rf"{data} is damaged: {name} does not match its checksum"):
        read_checkpoint(folder)
    assert main(["verify", str(folder)]) == 1
    assert f"{data} is damaged: {name} does not match its checksum" in capsys.readouterr().out
    # what is sound can still be read
    assert read_checkpoint(folder, prefix="train_state") == {"train_state": STATE["train_state"]}


def test_weights_alone_are_checked_too(folder: Path) -> None:
    flip(folder / "__0_0.distcp", next(content(folder, "weight")))
    with pytest.raises(ValueError, match="weight does not match its checksum"):
        load_weights(folder, {"weight": torch.empty(3, 1000)})


def test_any_flipped_bit_is_found_or_changes_nothing(folder: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    copy = tmp_path / "copy"
    found = 0
    for name in ("__0_0.distcp", ".metadata"):
        size = (folder / name).stat().st_size
        for at in sorted(rng.sample(range(size), 60)):
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            flip(copy / name, at, rng.randrange(8))
            if list(damages(copy)):
                found += 1
            else:
                assert same(read_checkpoint(copy), STATE), (name, at)
    assert found > 60


@pytest.mark.parametrize("damage", ["cut", "missing", "longer"])
def test_other_damage_names_the_file(folder: Path, damage: str) -> None:
    data = folder / "__0_0.distcp"
    if damage == "missing":
        data.unlink()
    else:
        whole = data.read_bytes()
        data.write_bytes(whole + b"more" if damage == "longer" else whole[: len(whole) // 2])
    faults = list(damages(folder))
    assert faults
    assert all(str(data) in fault for fault in faults)
    if damage != "longer":
        with pytest.raises(ValueError, match=r"__0_0\.distcp"):
            read_checkpoint(folder)


def test_an_empty_index_has_a_reason(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"")
    with pytest.raises(ValueError, match=r"\.metadata is damaged: EOFError"):
        read_checkpoint(folder)
    assert list(damages(folder)) == [f"{folder / '.metadata'} is damaged: EOFError: Ran out of input"]


def test_an_unfinished_checkpoint_cannot_be_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert f"{tmp_path} is not a complete checkpoint" in capsys.readouterr().err


def test_a_folder_of_checkpoints_names_the_newest(tmp_path: Path) -> None:
    for name in ("step-9", "step-10", "step-10-live", "step-11"):
        (tmp_path / "run/checkpoint" / name).mkdir(parents=True)
        if name != "step-11":
            (tmp_path / "run/checkpoint" / name / ".metadata").touch()
    newest = tmp_path / "run/checkpoint/step-10"
    for folder in (tmp_path / "run", tmp_path / "run/checkpoint"):
        assert newest_inside(folder) == newest
        with pytest.raises(ValueError, match=f"it has no .metadata; give one that lies in it, for example {newest}$"):
            require_complete(folder)
        with pytest.raises(
            ValueError, match=f"give the step-N folder of one such as {newest}, by checkpoint.load_step"
        ):
            read_freeze(folder)
    assert newest_inside(tmp_path / "run/checkpoint/step-11") is None
    with pytest.raises(ValueError, match="none does not exist: give the folder of a checkpoint"):
        require_complete(tmp_path / "none")


def test_checking_reads_streams_of_any_size(tmp_path: Path) -> None:
    write_checkpoint({"big": torch.zeros(300_000), "none": torch.zeros(0)}, tmp_path / "c")
    for index, entry in read_index(tmp_path / "c").storage_data.items():
        check_stream(tmp_path / "c", index.fqn, entry)
