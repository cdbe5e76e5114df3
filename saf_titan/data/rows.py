"""Gives sequences that rust_data generates in memory, MQAR or class tokens, to torchtitan.

A row depends on a seed and its number alone. Training, calibration and validation never have the same seed: training
has `data.seed`, validation 800001 + length + pairs, and calibration takes the upper half of all 64-bit seeds (of all
32-bit seeds with data.zoology).
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from saf_titan.config.own_sections import DataSection
from saf_titan.data.cursor import CursorLoader
from saf_titan.data.generate import generate_rows, vocabulary
from saf_titan.data.loader import require_covered

_CALIBRATION_SEEDS = 1 << 63
_ZOOLOGY_CALIBRATION_SEEDS = 1 << 31
_NO_END = 1 << 62
"""A number of rows that no run reaches."""


class RowLoader(CursorLoader):
    """Yields batches of generated rows; sequence i is row i."""

    @dataclass(kw_only=True, slots=True)
    class Config(CursorLoader.Config):
        data: DataSection = field(default_factory=DataSection)
        """The kind of sequences, and the settings of their generator."""
        seed: int = 1337
        """Seed of the rows; another seed gives other rows."""
        pairs: int = 0
        """mqar: key-value pairs of a row. 0: data.pairs."""
        draw: int = 0
        """With data.zoology: number of rows that share one random stream. 0: data.zoology_rows."""
        max_rows: int = _NO_END
        """For a loader that stops: number of rows."""
        vocab_size: int = 0
        """Rows of the model's embedding, which must cover the ids. 0: not checked."""

        def for_calibration(self, seed: int, *, held_out: bool = True) -> Self:
            assert held_out, "the configuration refuses calibration on training sequences"
            if self.data.zoology:
                # each seed has room for a million draws
                return replace(self, seed=_ZOOLOGY_CALIBRATION_SEEDS + (seed % 2000) * 1_000_000)
            return replace(self, seed=_CALIBRATION_SEEDS + seed)

    def __init__(self, config: Config, **shares: Any) -> None:
        super().__init__(config, **shares)
        if config.vocab_size:
            require_covered(f'data.kind = "{config.data.kind}"', vocabulary(config.data), config.vocab_size)
        self._data, self._seed, self._pairs, self._draw = config.data, config.seed, config.pairs, config.draw
        self.num_windows = config.max_rows

    def window(self, sequence: int) -> int:
        return sequence

    def _read(self, sequences_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        inputs_BT, labels_BT = generate_rows(
            self._data,
            seed=self._seed,
            first_row=int(sequences_B[0]),
            rows=len(sequences_B),
            length=self._seq_len,
            pairs=self._pairs,
            draw=self._draw,
        )
        return torch.from_numpy(inputs_BT), torch.from_numpy(labels_BT)

    def _meaning(self) -> dict[str, Any]:
        # other keys of [data] are compared with those of the run's folder, when a run goes on
        return {"kind": self._data.kind, "seq_len": self._seq_len, "seed": self._seed}
