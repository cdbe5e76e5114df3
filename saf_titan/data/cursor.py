"""The base of all loaders: a global cursor, from which every rank derives its part of each batch.

The cursor counts the sequences that all ranks together have been given. A batch takes the next
`ranks x local_batch_size` sequences, and each rank takes `local_batch_size` consecutive ones of them. Therefore an
optimizer step has the same sequences for every number of ranks and every depth of gradient accumulation with the same
global batch, and the saved state is the same on all ranks.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

REMEDY = (
    "go on with the old one, or start a new run in another dump_folder (with its weights: "
    "checkpoint.initial_load_model_only = true)"
)

_STATE_VERSION = 1
_SETTINGS = {
    "version": "the format of the loader's state",
    "kind": "data.kind",
    "seq_len": "training.seq_len",
    "seed": "data.seed",
    "shuffle": "data.shuffle",
}
"""Fields of a loader's state that must not change, with the name of each in errors."""


class CursorLoader(BaseDataLoader):
    """Yields batches of inputs and targets, int64 [B, T]; targets of IGNORE_INDEX are not trained on."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        infinite: bool = True
        """Go on for ever. Otherwise stop after `num_windows` sequences. The last batch is then filled up with sequences
        whose targets are all ignored, so that every rank gets the same number of batches."""
        batches_per_step: int = 1
        """For a loader that stops: number of batches that are used together, as in a pipeline. The loader stops after a
        multiple of this number."""

        def for_calibration(self, seed: int, *, held_out: bool = True) -> Self:
            """Return the loader of a calibration.

            seed: seed of the order of its sequences.
            held_out: take held-out sequences, which training never sees; False for those of the training split.
            """
            raise NotImplementedError

    num_windows: int
    """Number of distinct sequences in one epoch."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        self._batch, self._ranks, self._rank = local_batch_size, dp_world_size, dp_rank
        self._batches_per_step, self._infinite = config.batches_per_step, config.infinite
        self._seq_len = seq_len
        self._cursor = 0

    @abstractmethod
    def window(self, sequence: int) -> int:
        """Return the number of the window that sequence number `sequence` is."""

    @abstractmethod
    def _read(self, sequences_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, int64 [B, T], of the sequences with these numbers."""

    @abstractmethod
    def _meaning(self) -> dict[str, Any]:
        """Return what the order of the sequences depends on: fields of `_SETTINGS`, and "corpus", a digest of files."""

    def _other_corpus(self) -> str:
        """Return the beginning of the error for a state that was saved with other files; it ends before "than"."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor and what the order of the sequences depends on; the state is the same on all ranks."""
        return {"version": _STATE_VERSION, "cursor": self._cursor, **self._meaning()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved cursor.

        Raises:
            ValueError: the state was saved with other data or another order, where the cursor means other sequences.
        """
        here = self.state_dict()
        for field, name in _SETTINGS.items():
            if field in here and state_dict.get(field) != here[field]:
                raise ValueError(
                    f"{name} was {state_dict.get(field)} when the checkpoint was saved, and is {here[field]} now; "
                    f"{REMEDY}"
                )
        if "corpus" in here and state_dict.get("corpus") != here["corpus"]:
            raise ValueError(
                f"{self._other_corpus()} than the run was trained on when the checkpoint was saved; {REMEDY}"
            )
        self._cursor = int(state_dict["cursor"])

    @property
    def num_batches(self) -> int:
        """Number of batches that a loader that stops gives each rank; the last batches may be filled up."""
        num_steps = -(-self.num_windows // (self._sequences_a_batch * self._batches_per_step))
        return num_steps * self._batches_per_step

    @property
    def tokens_given(self) -> int:
        """Number of tokens that all ranks together have been given so far, including those before a resume."""
        return self._cursor * self._seq_len

    @property
    def _sequences_a_batch(self) -> int:
        return self._ranks * self._batch

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        end = self.num_batches * self._sequences_a_batch
        while self._infinite or self._cursor < end:
            first = self._cursor + self._rank * self._batch
            sequences_B = np.arange(first, first + self._batch)
            inputs_BT, targets_BT = self._read(sequences_B)
            # the batch counts as given from here on: a checkpoint is written after the step that used it
            self._cursor += self._sequences_a_batch
            if not self._infinite:
                targets_BT[torch.from_numpy(sequences_B >= self.num_windows)] = IGNORE_INDEX
            yield {"input": inputs_BT}, targets_BT
