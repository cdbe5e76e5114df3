"""One process of a run, from the configuration to the report; errors of the user become one line of the log."""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from pathlib import Path

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException
from torchtitan.observability import structured_logger
from torchtitan.tools.logging import init_logger, logger

from saf_titan.config import RunConfig, check_world_size
from saf_titan.config.effects import effect_notes
from saf_titan.run.backends import require_backend
from saf_titan.run.build import trainer_config
from saf_titan.run.checkpoints import await_exchange, finish_exchange
from saf_titan.run.divergence import Diverged
from saf_titan.run.folder import open_folder
from saf_titan.run.initial_weights import initial_checkpoint
from saf_titan.run.leave import leave
from saf_titan.run.lock import lock
from saf_titan.run.signals import stop_with_parent
from saf_titan.saf.install.integrity import DamagedCheckpoint, first_cause

FAILURE = 1


def launch(run: RunConfig) -> int:
    """Train as one rank of the world that the environment describes, and return the exit status 0.

    A failure that the user can cause is logged and ends the process with status 1; other errors are raised.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # a launcher that is killed cannot tell its ranks: they would train on, and keep the folder locked
        stop_with_parent()
    compat.ensure_launcher_environment()
    init_logger()
    structured_logger.init_structured_logger(source="training", output_dir=run.dump_folder, enable=False)
    trainer, held = None, None
    try:
        check_world_size(run, int(os.environ["WORLD_SIZE"]))
        require_backend(run, compat.device_type())
        is_first = os.environ["RANK"] == "0"
        held = lock(Path(run.dump_folder)) if is_first else None
        (finish_exchange if is_first else await_exchange)(Path(run.dump_folder) / run.checkpoint.folder)
        opening = open_folder(run)
        notes = [f"note: {note}" for note in effect_notes(run)]
        for line in [*opening.lines, *filter(None, [opening.nothing_to_do]), *notes] if is_first else ():
            logger.info(line)
        if opening.nothing_to_do is not None:
            return 0
        trainer = trainer_config(run, initial=initial_checkpoint(run)).build()
        trainer.train()
        if run.report.enable and dist.get_rank() == 0 and not trainer.stopped_early:
            _write_report(run)
        if trainer.stopped_early:
            logger.info(f"Stopped after step {trainer.step}; the same command goes on from there")
    except (ValueError, OSError, RuntimeError, CheckpointException) as error:
        if isinstance(error, RuntimeError) and not isinstance(error, Diverged) and not is_full_disk(error):
            raise
        # a user can cause these: bad data, a damaged checkpoint, a full disk, a learning rate that is too high
        logger.error(_explain(error, run))
        _keep_trace(run)
        if trainer is not None:
            # close here, because leave() ends the process before the `finally` below
            with contextlib.suppress(Exception):
                trainer.close()
        # the normal way out could hang, because other ranks may be waiting in a collective; the launcher ends them
        leave(FAILURE)
    finally:
        if trainer is not None:
            trainer.close()
        if held is not None:
            held.close()
    return 0


def _write_report(run: RunConfig) -> None:
    """Write the report. A failure is only logged, because the training is complete."""
    from saf_titan.report.write import write_report

    try:
        logger.info(f"Report: {write_report(Path(run.dump_folder), heads=run.report.heads)}")
    except Exception as error:  # of any type: a plotting library or a disk may raise it
        logger.error(
            f"The report could not be written ({type(error).__name__}: {error}). The training is complete; "
            f"try again with python -m saf_titan.analysis report {run.dump_folder}"
        )


def _explain(error: BaseException, run: RunConfig) -> str:
    """Return an error as one line; if many ranks raised an error, the line is about the first cause."""
    if is_full_disk(error):
        where = getattr(error, "filename", None) or run.dump_folder
        return (
            f"no space left in {where} ({_first_line(error)}); the last complete checkpoint is intact: free some "
            f"space, or set checkpoint.keep_latest_k, and start the same command again"
        )
    if isinstance(error, CheckpointException):
        cause = first_cause(error)
        if isinstance(cause, DamagedCheckpoint | OSError) or is_full_disk(cause):
            return _explain(cause, run)
        return (
            f"checkpoint in {run.dump_folder} failed ({type(cause).__name__}: {_first_line(cause)}); one that cannot "
            f"be loaded is damaged or was saved with another optimizer: remove it to go on from an older one"
        )
    if isinstance(error, DamagedCheckpoint):
        return f"{error}; the checkpoint cannot be used: remove it to go on from an older one"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def is_full_disk(error: BaseException) -> bool:
    """Return whether an error means that the disk is full.

    torch's writer of checkpoints raises no OSError: it notices afterwards that the file is shorter than the data.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    text = str(error)
    return "inline_container" in text and ("unexpected pos" in text or "failed writing" in text)


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)


def _keep_trace(run: RunConfig) -> None:
    """Write the traceback to a file, for a bug report; if that fails, the message in the log is enough."""
    with contextlib.suppress(OSError):
        path = Path(run.dump_folder) / f"error-rank{os.environ['RANK']}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
