"""Only complete checkpoints count, whatever lies beside them."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from saf_titan.run.checkpoints import SoundCheckpoints, complete_checkpoints, unfinished_checkpoints


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
