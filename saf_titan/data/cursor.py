"""One global cursor from which every rank derives its share of an endless or finite row of sequences.

The cursor counts the sequences that all ranks together have been given. A batch takes the next
`ranks x local_batch_size` sequences, and each rank a run of `local_batch_size` among them. So the sequences of an
optimizer step are the same for every number of ranks and every depth of gradient accumulation that make the same global
batch, and the state needs no rank.
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
        """Go on for ever. Otherwise stop after `num_windows`, with a last batch that is filled up with sequences whose
        targets are all ignored, so that every rank gets as many batches."""
        batches_per_step: int = 1
        """Of a loader that stops: batches that are used together, as in a pipeline; it stops after whole steps."""

        def for_calibration(self, seed: int, *, held_out: bool = True) -> Self:
            """The sequences of a calibration, in an order of their own; by default out of what training never sees."""
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
        """Return which window of its source sequence number `sequence` is."""

    @abstractmethod
    def _read(self, sequences_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of consecutive sequences."""

    @abstractmethod
    def _meaning(self) -> dict[str, Any]:
        """Return what gives the cursor its meaning: fields of `_SETTINGS`, and for files the digest of the `corpus`."""

    def _other_corpus(self) -> str:
        """Return, as the start of an error, that the files hold something else than what the cursor was saved for."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor and the settings that give it its meaning; they are equal on all ranks."""
        return {"version": _STATE_VERSION, "cursor": self._cursor, **self._meaning()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved cursor.

        Raises:
            ValueError: the cursor belongs to other data or to another order, so it would point at other sequences.
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
        """Batches that a rank gets of a loader that stops; the last ones may be filled up."""
        num_steps = -(-self.num_windows // (self._sequences_a_batch * self._batches_per_step))
        return num_steps * self._batches_per_step

    @property
    def tokens_given(self) -> int:
        """Tokens that all ranks together have been given so far, those before a resume included."""
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
