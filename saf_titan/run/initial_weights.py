"""Converts weights of Hugging Face transformers or nanoGPT to a checkpoint from which a run can start."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saf_titan.config import RunConfig
from saf_titan.fields.step_folders import INDEX, is_complete
from saf_titan.run.checkpoints import complete_checkpoints

logger = logging.getLogger()

_FOLDER = "initial_weights"


def initial_checkpoint(run: RunConfig) -> Path | None:
    """Convert ``checkpoint.initial_load_path``, if it needs that, and return the converted checkpoint, otherwise None.

    A folder of transformers, or nanoGPT's ``ckpt.pt``, is converted to a checkpoint in the output folder. The first
    process on a machine converts and the others wait; a repeated start uses the existing checkpoint.

    Raises ValueError if the weights are not of the run's model, or ``initial_load_model_only`` is not set.
    """
    if not run.checkpoint.enable or not run.checkpoint.initial_load_path:
        return None
    source, folder = Path(run.checkpoint.initial_load_path).resolve(), Path(run.dump_folder)
    if not is_foreign(source) or complete_checkpoints(folder / run.checkpoint.folder):
        return None
    if not run.checkpoint.initial_load_model_only:
        raise ValueError(
            f"checkpoint.initial_load_path = {source} holds only weights, no moments and no position in the data: set "
            "checkpoint.initial_load_model_only = true to begin a run with them"
        )
    made = folder / _FOLDER / _identity(source)
    with _alone(folder / _FOLDER):
        if not is_complete(made):
            _convert(run, source, made)
    # by every process, because the one that converted may not be the one whose log is shown
    logger.info(f"Starts with {source}, converted to a checkpoint in {made}, which is not needed after the first save")
    return made


def _convert(run: RunConfig, source: Path, made: Path) -> None:
    # imported here, because transformers takes seconds to import
    try:
        from saf_titan.hf.export import import_model
    except ImportError as error:
        raise ValueError(
            f"checkpoint.initial_load_path = {source} is read through transformers: pip install 'saf_titan[hf]' "
            f"({error})"
        ) from error
    unfinished = made.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    what = import_model(run, source, unfinished)
    unfinished.rename(made)
    logger.info(f"Converted {source} ({what})")


def is_foreign(source: Path) -> bool:
    """Whether weights are those of transformers or of nanoGPT, and no checkpoint of ours."""
    return source.suffix == ".pt" or ((source / "config.json").is_file() and not (source / INDEX).exists())


def _identity(source: Path) -> str:
    """Return a digest of the path and of the files' names, sizes and times, which changes if the weights change."""
    files = [source] if source.is_file() else sorted(source.iterdir()) if source.is_dir() else []
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(repr((str(source), facts)).encode()).hexdigest()[:16]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock, so that only one process of the run at a time is in the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
