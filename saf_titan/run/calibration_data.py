"""The held-out sequences of a calibration: the same for the trainer and for a checkpoint on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

from saf_titan.config import RunConfig
from saf_titan.data.loader import ShardLoader

Batch = TypeVar("Batch")
TokenBatch = tuple[dict[str, Tensor], Tensor]
"""Inputs by name and targets, as the loader yields them."""


@dataclass(frozen=True)
class CalibrationData(Generic[Batch]):
    """This rank's share of the calibration sequences."""

    batches: Sequence[Batch]
    positions: tuple[int, ...]
    """Where each sequence of all ranks starts in its source, in tokens."""
    seed: int
    source: str


def calibration_loader(
    corpus: ShardLoader.Config, run: RunConfig, *, world_size: int = 1, rank: int = 0
) -> ShardLoader:
    """Held-out windows of ``corpus``: a loader whose first batch is this rank's share of the sequences.

    Raises ValueError if there are too few windows.
    """
    saf, seq_len = run.saf, run.training.seq_len
    loader = replace(corpus, split="calibration", seed=saf.calibration_seed, shuffle=True, verify=False).build(
        dp_world_size=world_size,
        dp_rank=rank,
        seq_len=seq_len,
        local_batch_size=saf.calibration_sequences // world_size,
    )
    if loader.num_windows < saf.calibration_sequences:
        raise ValueError(
            f"saf.calibration_sequences = {saf.calibration_sequences}, but the calibration half of the held-out "
            f"tokens in {corpus.path} has {loader.num_windows} windows of {seq_len} tokens; "
            f"lower it, or tokenize with more --val-tokens"
        )
    return loader


def read_calibration_data(loader: ShardLoader, run: RunConfig) -> CalibrationData[TokenBatch]:
    """The calibration sequences; reading them moves neither a training cursor nor a training RNG."""
    saf = run.saf
    input_dict, labels = next(iter(loader))
    tokens, targets = (tensor.split(run.calibration_batch_size) for tensor in (input_dict["input"], labels))
    return CalibrationData(
        batches=[({"input": x_BT}, y_BT) for x_BT, y_BT in zip(tokens, targets, strict=True)],
        positions=tuple(
            loader.window(sequence) * run.training.seq_len for sequence in range(saf.calibration_sequences)
        ),
        seed=saf.calibration_seed,
        source=run.data.path,
    )
