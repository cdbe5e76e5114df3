"""The held-out sequences of a calibration, which are the same for the trainer and for a checkpoint on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from saf_titan.config import ConfigError, RunConfig, calibration_sequences
from saf_titan.data.checks import lacking_calibration
from saf_titan.data.cursor import CursorLoader

Batch = TypeVar("Batch")
TokenBatch = tuple[dict[str, Tensor], Tensor]
"""Inputs by name, and targets, as a loader yields them."""


@dataclass(frozen=True)
class CalibrationData(Generic[Batch]):
    """This rank's share of the calibration sequences."""

    batches: Sequence[Batch]
    positions: tuple[int, ...]
    """The first token of each sequence, over all ranks, as an index into the source."""
    seed: int
    source: str


def held_out_loader(
    corpus: CursorLoader.Config,
    run: RunConfig,
    *,
    sequences: int,
    world_size: int = 1,
    rank: int = 0,
    held_out: bool = True,
) -> CursorLoader:
    """Return a loader of held-out windows whose first batch is this rank's share of ``sequences``.

    Args:
        sequences: number of sequences of all ranks; a multiple of ``world_size``. The caller must check that
            the loader has that many (``num_windows``).
        held_out: False for windows of the training split; training itself still uses these windows too.
    """
    assert sequences % world_size == 0
    return corpus.for_calibration(run.saf.calibration_seed, held_out=held_out).build(
        dp_world_size=world_size,
        dp_rank=rank,
        seq_len=run.training.seq_len,
        local_batch_size=sequences // world_size,
    )


def window_positions(loader: CursorLoader, run: RunConfig, sequences: int) -> tuple[int, ...]:
    """Return the index of the first token, in the source, of each of the first ``sequences`` windows of all ranks."""
    return tuple(loader.window(sequence) * run.training.seq_len for sequence in range(sequences))


def calibration_loader(
    corpus: CursorLoader.Config, run: RunConfig, *, world_size: int = 1, rank: int = 0
) -> CursorLoader:
    """Return a loader of ``saf.calibration_split`` whose first batch is this rank's share of the sequences.

    Their number is ``saf.calibration_sequences``, rounded up to a multiple of ``world_size``.

    Raises ConfigError if there are too few windows.
    """
    wanted = calibration_sequences(run, world_size)
    held_out = run.saf.calibration_split == "validation"
    loader = held_out_loader(corpus, run, sequences=wanted, world_size=world_size, rank=rank, held_out=held_out)
    problems = lacking_calibration(run, wanted, loader.num_windows)
    if problems:
        raise ConfigError(problems)
    return loader


def rounding_line(run: RunConfig, world_size: int) -> str | None:
    """Return a line that says to how many the calibration sequences are rounded up; None if they divide evenly."""
    asked, wanted = run.saf.calibration_sequences, calibration_sequences(run, world_size)
    if asked == wanted:
        return None
    return (
        f"saf.calibration_sequences = {asked} becomes {wanted}, the next multiple of the {world_size} ranks that share "
        f"the sequences"
    )


def read_calibration_data(loader: CursorLoader, run: RunConfig, *, world_size: int = 1) -> CalibrationData[TokenBatch]:
    """Read this rank's calibration sequences, without a change to the cursor or the random numbers of training."""
    saf = run.saf
    input_dict, labels = next(iter(loader))
    tokens, targets = (tensor.split(run.calibration_batch_size) for tensor in (input_dict["input"], labels))
    return CalibrationData(
        batches=[({"input": x_BT}, y_BT) for x_BT, y_BT in zip(tokens, targets, strict=True)],
        positions=window_positions(loader, run, calibration_sequences(run, world_size)),
        seed=saf.calibration_seed,
        source=run.data_source + (" (training split)" if saf.calibration_split == "train" else ""),
    )
