"""Only complete checkpoints count, whatever lies beside them."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from saf_titan.run import checkpoints
from saf_titan.run.checkpoints import (
    SoundCheckpoints,
    await_exchange,
    complete_checkpoints,
    finish_exchange,
    unfinished_checkpoints,
)


def make(folder: Path, *steps: int, complete: bool = True) -> None:
    for step in steps:
        path = folder / f"step-{step}"
        path.mkdir(parents=True)
        (path / "__0_0.distcp").write_bytes(b"data")
        if complete:
            (path / ".metadata").write_bytes(b"index")


class Manager(SoundCheckpoints):
    """The part that keeps house, without process group and model."""

    def __init__(self, folder: Path, keep_latest_k: int) -> None:
        self.folder, self.keep_latest_k = str(folder), keep_latest_k
        self.enable = False
        self.purge_queue: queue.Queue[str] = queue.Queue()

    def _should_purge(self) -> bool:
        return True

    def purged(self) -> list[str]:
        self._purge_stale_checkpoints()
        return sorted(Path(self.purge_queue.get_nowait()).name for _ in range(self.purge_queue.qsize()))


def test_what_counts(tmp_path: Path) -> None:
    assert complete_checkpoints(tmp_path / "none") == {}
    make(tmp_path, 20, 100, 3)
    make(tmp_path, 110, complete=False)
    (tmp_path / "step-100-backup").mkdir()
    (tmp_path / "step-100-backup" / ".metadata").write_bytes(b"index")
    (tmp_path / "step-7").write_bytes(b"a file")
    assert list(complete_checkpoints(tmp_path)) == [3, 20, 100]
    assert [path.name for path in unfinished_checkpoints(tmp_path)] == ["step-110"]
    assert Manager(tmp_path, 2)._find_load_step() == 100


def test_leftovers_never_push_a_complete_checkpoint_out(tmp_path: Path) -> None:
    make(tmp_path, 10, 20)
    make(tmp_path, 30, 40, complete=False)
    assert Manager(tmp_path, 2).purged() == []
    # nor does a folder of another name
    (tmp_path / "step-50-backup").mkdir()
    assert Manager(tmp_path, 2).purged() == []


def test_older_checkpoints_and_leftovers_go(tmp_path: Path) -> None:
    make(tmp_path, 10, 20, 40, 50)
    make(tmp_path, 30, 60, complete=False)
    assert Manager(tmp_path, 2).purged() == ["step-10", "step-20", "step-30"]
    # what is about to be deleted is no checkpoint any more, also if the deletion is cut short
    assert list(complete_checkpoints(tmp_path)) == [40, 50]


def test_nothing_is_saved_while_the_state_is_not_sound(tmp_path: Path) -> None:
    manager = Manager(tmp_path, 2)
    manager._should_save = lambda *_: True

    def refuse() -> None:
        raise RuntimeError("not finite")

    manager.require_sound = refuse
    with pytest.raises(RuntimeError, match="not finite"):
        manager._save(10)
    assert list(tmp_path.iterdir()) == []


def test_steps_to_keep_stay_and_do_not_count_among_the_newest(tmp_path: Path) -> None:
    make(tmp_path, 10, 20, 30, 40, 50)
    manager = Manager(tmp_path, 2)
    manager.keep_steps = lambda: frozenset({20, 50, 70})
    assert manager.purged() == ["step-10", "step-30"]
    assert list(complete_checkpoints(tmp_path)) == [20, 40, 50]


class Exchange(Manager):
    """Saves a file that says which state it is of; `in_save` is called before the index is written."""

    state = "new"
    in_save: Callable[[], None] = staticmethod(lambda: None)

    def save(self, step: int, last_step: bool = False) -> None:
        path = Path(self._create_checkpoint_id(step))
        path.mkdir()
        (path / "__0_0.distcp").write_text(self.state)
        self.in_save()
        (path / ".metadata").write_bytes(b"index")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(number: int, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the process die in front of the call of that number, counted from 1."""
    real, calls = getattr(owner, name), iter(range(1, 100))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            killed()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("point", ["save", "first rename", "second rename", "old folder", "end"])
def test_a_kill_while_a_checkpoint_is_exchanged_loses_neither_state(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    manager = Exchange(tmp_path, 2)
    manager.state = "old"
    manager.save(8)
    manager.state = "new"
    # what earlier kills have left: half a save, and a folder of the name that the old state will get
    (tmp_path / "step-8-being-saved").mkdir()
    (tmp_path / "step-8-being-saved" / "__1_0.distcp").write_text("of another number of ranks")
    shutil.copytree(tmp_path / "step-8", tmp_path / "step-8-live")

    process = os.fork()
    if not process:
        if point == "save":
            manager.in_save = killed
        elif point == "old folder":
            kill_at_call(2, monkeypatch, shutil, "rmtree")
        elif point != "end":
            kill_at_call(1 if point == "first rename" else 2, monkeypatch, Path, "rename")
        try:
            manager.save_instead(8, "step-8-live")
        finally:
            killed()
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL

    def state(name: str) -> str:
        assert (tmp_path / name / ".metadata").is_file()
        return (tmp_path / name / "__0_0.distcp").read_text()

    is_new = point in ("second rename", "end")
    # whoever only looks finds a checkpoint of the step before anything is put right
    before = complete_checkpoints(tmp_path)
    assert list(before) == [8]
    assert (before[8] / "__0_0.distcp").read_text() == ("new" if is_new else "old")
    finish_exchange(tmp_path)
    assert complete_checkpoints(tmp_path) == {8: tmp_path / "step-8"}
    assert state("step-8") == ("new" if is_new else "old")
    if not is_new:
        manager.save_instead(8, "step-8-live")
    assert (state("step-8"), state("step-8-live")) == ("new", "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-8", "step-8-live"]
    assert [path.name for path in (tmp_path / "step-8").glob("*.distcp")] == ["__0_0.distcp"]


def test_other_ranks_rename_nothing_and_wait_for_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 8)
    (tmp_path / "step-8").rename(tmp_path / "step-8-being-saved")
    monkeypatch.setattr(checkpoints, "_EXCHANGE_SECONDS", 0.0)
    with pytest.raises(ValueError, match="step-8-being-saved was not renamed to step-8 within 0 s"):
        await_exchange(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-8-being-saved"]
    monkeypatch.undo()
    # the first rank does it while the other one waits
    monkeypatch.setattr(time, "sleep", lambda seconds: finish_exchange(tmp_path))
    await_exchange(tmp_path)
    assert complete_checkpoints(tmp_path) == {8: tmp_path / "step-8"}
