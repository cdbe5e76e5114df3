"""torchtitan's checkpoint manager, with checks of what it loads and saves.

A folder counts as a checkpoint only if it is named ``step-N`` and holds ``.metadata``, the index, which is written
last. What is loaded is compared with its checksums. Nothing is saved if a loss, weight or moment is not finite.
"""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.checkpointer.base import MODEL

from saf_titan.fields.step_folders import INDEX, is_complete, step_of
from saf_titan.saf.install.integrity import CheckedReader

_UNFINISHED = "-being-saved"

_EXCHANGE_SECONDS = 60.0
"""How long a rank waits for a rename of the first rank; a shared file system may show it late."""
_POLL_SECONDS = 0.05


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Return step -> path of the complete checkpoints in ``folder``, ascending; empty if the folder does not exist.

    A checkpoint whose exchange was cut short between its two renames counts, see `finish_exchange`.
    """
    found = {step: path for step, path in _step_folders(folder) if is_complete(path)}
    return dict(sorted((dict(_cut_short(folder)) | found).items()))


def finish_exchange(folder: Path) -> None:
    """Give a checkpoint its name where `SoundCheckpoints.save_instead` was killed between its two renames.

    Only for the rank that holds the lock of the run's folder: without it, the checkpoint may be one that another run is
    saving at this moment.
    """
    for step, path in _cut_short(folder):
        path.rename(folder / f"step-{step}")


def await_exchange(folder: Path) -> None:
    """Wait until the first rank has done `finish_exchange`, so that no checkpoint is renamed while this rank reads it.

    Raises ValueError if that takes a minute.
    """
    end = time.monotonic() + _EXCHANGE_SECONDS
    while cut_short := _cut_short(folder):
        if time.monotonic() >= end:
            step, path = cut_short[0]
            raise ValueError(
                f"{path} was not renamed to step-{step} within {_EXCHANGE_SECONDS:.0f} s, which the first rank does at "
                f"the start: see its error, or let all ranks see the same folder"
            )
        time.sleep(_POLL_SECONDS)


def unfinished_checkpoints(folder: Path) -> list[Path]:
    """Return the incomplete checkpoints, which a killed or failed save has left behind, ascending by step."""
    return [path for _, path in _step_folders(folder) if not is_complete(path)]


def _cut_short(folder: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints under the name that `save_instead` gives them first, of steps that have no other."""
    saved = [(step, path) for step, path in _step_folders(folder, _UNFINISHED) if is_complete(path)]
    return [(step, path) for step, path in saved if not (folder / f"step-{step}").exists()]


def _step_folders(folder: Path, suffix: str = "") -> list[tuple[int, Path]]:
    entries = folder.iterdir() if folder.is_dir() else ()
    named = [(step_of(entry, suffix), entry) for entry in entries]
    return sorted((step, entry) for step, entry in named if step is not None and entry.is_dir())


class SoundCheckpoints(CheckpointManager):
    """Loads only complete, undamaged checkpoints, and saves only finite states of training."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        extra_steps: tuple[int, ...] = ()
        """Steps that are saved in addition to the multiples of `interval`."""

    _suffix = ""
    """Appended to the folder names of checkpoints while `save_instead` saves."""

    keep_steps: Callable[[], frozenset[int]] = staticmethod(frozenset)
    """Returns the steps whose checkpoints are never removed; called before stale ones are. Set by the trainer."""

    require_sound: Callable[[], None] = staticmethod(lambda: None)
    """Called on every rank before a save; raises if the state of training must not be saved. Set by the trainer."""

    def __init__(self, config: Config, **others: Any) -> None:
        super().__init__(config, **others)
        self._extra_steps = frozenset(config.extra_steps)

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        if from_hf:
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        dcp.load(state_dict, storage_reader=CheckedReader(checkpoint_id))
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(state_dict)

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        is_extra = self.enable and not self.load_only and curr_step in self._extra_steps
        return is_extra or bool(super()._should_save(curr_step, last_step))

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if self._should_save(curr_step, last_step):
            self.require_sound()
        return bool(super()._save(curr_step, last_step))

    def save_instead(self, step: int, old_name: str) -> None:
        """Save the state of training in place of the checkpoint of ``step``, which is renamed to ``old_name``.

        A kill at any time leaves a complete checkpoint of the step, old or new, or one that `finish_exchange` brings
        back. A collective.
        """
        if dist.get_rank() == 0:
            # of an exchange that was killed before its first rename, perhaps by another number of ranks
            shutil.rmtree(f"{self._create_checkpoint_id(step)}{_UNFINISHED}", ignore_errors=True)
        dist.barrier()
        self._suffix = _UNFINISHED
        try:
            self.save(step, last_step=True)
        finally:
            self._suffix = ""
        if dist.get_rank() == 0:
            current = Path(self._create_checkpoint_id(step))
            old = current.with_name(old_name)
            if old.exists():
                # left by an earlier call that was killed; it holds the same step with the same heads
                shutil.rmtree(old)
            current.rename(old)
            current.with_name(current.name + _UNFINISHED).rename(current)
        dist.barrier()

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        return f"{super()._create_checkpoint_id(step, folder)}{self._suffix}"

    def _find_load_step(self, folder: str = "") -> int:
        return max(complete_checkpoints(Path(folder or self.folder)), default=-1)

    def _purge_stale_checkpoints(self) -> None:
        """Remove old checkpoints except those of `keep_steps`, and old incomplete ones that failed saves have left."""
        if not self._should_purge():
            return
        folder = Path(self.folder)
        complete = list(complete_checkpoints(folder).items())
        kept = complete[-self.keep_latest_k :]
        oldest = kept[0][0] if kept else 0
        for_ever = self.keep_steps()
        stale = [path for step, path in complete[: -self.keep_latest_k] if step not in for_ever]
        stale += [path for step, path in _step_folders(folder) if step < oldest and not is_complete(path)]
        stale += [path for step, path in _step_folders(folder, _UNFINISHED) if step < oldest]
        for path in stale:
            # the index goes first, so that a folder that is only half deleted is not taken for a checkpoint
            (path / INDEX).unlink(missing_ok=True)
            self.purge_queue.put(str(path))
