"""Gives rows of files that `rust_data.gen` wrote, sequences of MQAR or class tokens, to torchtitan."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from saf_titan.config.own_sections import DataSection
from saf_titan.data.cursor import CursorLoader
from saf_titan.data.loader import require_covered
from saf_titan.data.row_folder import Rows, open_row_folder
from saf_titan.data.windows import Split, WindowOrder


class RowFileLoader(CursorLoader):
    """Yields batches of rows of files, in a seeded order; each epoch visits every row once."""

    @dataclass(kw_only=True, slots=True)
    class Config(CursorLoader.Config):
        data: DataSection = field(default_factory=DataSection)
        """Folder and kind of the files."""
        split: Split = "train"
        """The split whose rows are read."""
        seed: int = 1337
        """Seed of the order of rows."""
        shuffle: bool = True
        """Shuffle the rows of each epoch; otherwise in the order of the files."""
        max_rows: int = 0
        """Read only the first rows of the split. 0: all."""
        vocab_size: int = 0
        """Rows of the model's embedding, which must cover the ids. 0: not checked."""

        def for_calibration(self, seed: int, *, held_out: bool = True) -> Self:
            return replace(self, split="calibration" if held_out else "train", seed=seed, shuffle=True)

    def __init__(self, config: Config, *, seq_len: int, **shares: Any) -> None:
        super().__init__(config, seq_len=seq_len, **shares)
        self._path = config.data.path
        folder = open_row_folder(Path(self._path), config.data)
        if folder.length != seq_len:
            raise ValueError(f"training.seq_len is {seq_len}, and the rows of {self._path} have {folder.length} tokens")
        if config.vocab_size:
            require_covered(self._path, folder.vocabulary, config.vocab_size)
        name, self._first_row, number = folder.part(config.split)
        self.num_windows = min(number, config.max_rows or number)
        self._rows, self._digest = Rows(folder, name), folder.digest(name)
        self._order = WindowOrder(num_windows=self.num_windows, seed=config.seed, shuffle=config.shuffle)

    def window(self, sequence: int) -> int:
        return self._first_row + int(self._order.windows(np.array([sequence]))[0])

    def _read(self, sequences_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        inputs_BT, labels_BT = self._rows.read(self._first_row + self._order.windows(sequences_B))
        return torch.from_numpy(inputs_BT), torch.from_numpy(labels_BT)

    def _meaning(self) -> dict[str, Any]:
        return {
            "corpus": self._digest,
            "seq_len": self._seq_len,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def _other_corpus(self) -> str:
        return f"data.path = {self._path} holds other rows"
