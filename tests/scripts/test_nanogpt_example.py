"""The example of a loop of one's own: train, freeze, save, resume; alone, in half precision, and on two ranks."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from tests.e2e.runs import execute, torchrun

FOLDER = Path(__file__).parents[2] / "scripts" / "examples" / "nanogpt"
TINY = (
    "--block_size 16 --vocab_size 64 --n_layer 2 --n_head 4 --n_embd 16 --batch_size 4 --eval_interval 2 --device cpu"
)
STEPS = "--max_iters 6 --freeze_at 3 --freeze_rate 0.5"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nanogpt")
    for split, size in (("train", 2000), ("val", 800)):
        ids = np.random.default_rng(0).integers(0, 64, size)
        ids.astype(np.uint16).tofile(folder / f"{split}.bin")
    return folder


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    # the benchmarks have a module of this name too
    other = sys.modules.pop("model", None)
    spec = importlib.util.spec_from_file_location("nanogpt_train", FOLDER / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["model"]
    if other is not None:
        sys.modules["model"] = other


def test_at_most_a_dozen_lines_are_added() -> None:
    added = [line for name in ("model.py", "train.py") for line in (FOLDER / name).read_text().splitlines()
             if line.endswith("# SAF")]  # fmt: skip
    assert len(added) == 10


def test_train_freeze_save_resume(
    data: Path, train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes on from a file, before and after the freeze, ends at the same bits as what never stopped."""
    real = torch.save

    def save(state: dict[str, Any], path: Path) -> None:
        real(state, path)
        shutil.copy(path, path.with_name(f"{state['iter_num']}.pt"))

    def cut_short(state: dict[str, Any], path: Path) -> NoReturn:
        path.write_bytes(b"half a file")
        raise OSError("killed")

    monkeypatch.setattr(torch, "save", save)
    whole = tmp_path / "whole"
    train.main(["--data", str(data), "--out_dir", str(whole), *TINY.split(), *STEPS.split()])
    assert "4 of 8 heads static: L" in capsys.readouterr().out
    end = torch.load(whole / "6.pt")["model"]
    assert any(name.endswith("heads.static_heads") for name in end)
    assert not any("static_heads" in name for name in torch.load(whole / "2.pt")["model"])
    for stop in (2, 4):
        out = tmp_path / f"from{stop}"
        out.mkdir()
        shutil.copy(whole / f"{stop}.pt", out / "ckpt.pt")
        train.main(["--data", str(data), "--out_dir", str(out), "--resume", *TINY.split(), *STEPS.split()])
        resumed = torch.load(out / "6.pt")["model"]
        assert list(resumed) == list(end)
        for name, value in end.items():
            assert torch.equal(resumed[name], value), name
    # a save that does not come to its end leaves the file as it was
    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(OSError, match="killed"):
        train.main(["--data", str(data), "--out_dir", str(out), "--resume", *TINY.split(), *STEPS.split()])
    assert torch.equal(torch.load(out / "ckpt.pt")["model"][name], value)


def test_half_precision_with_a_scaler(data: Path, train: ModuleType, tmp_path: Path) -> None:
    train.main(["--data", str(data), "--out_dir", str(tmp_path), "--dtype", "float16", *TINY.split(), *STEPS.split()])
    saved = torch.load(tmp_path / "ckpt.pt")
    assert saved["scaler"]["scale"] > 0
    assert all(value.isfinite().all() for value in saved["model"].values())


@pytest.mark.distributed
def test_two_ranks(data: Path, tmp_path: Path) -> None:
    words = [str(FOLDER / "train.py"), "--data", str(data), "--out_dir", str(tmp_path), *TINY.split(), *STEPS.split()]
    finished = execute([*torchrun(2), *words])
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert len(re.findall("4 of 8 heads static", finished.stdout)) == 1
    assert any(name.endswith("heads.static_heads") for name in torch.load(tmp_path / "ckpt.pt")["model"])
