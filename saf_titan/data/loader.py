"""torchtitan's view of a token corpus: one global cursor from which every rank derives its share.

The cursor counts the sequences that all ranks together have been given. A batch takes the next
`ranks x local_batch_size` sequences, and each rank a run of `local_batch_size` among them. So the sequences of an
optimizer step are the same for every number of ranks and every depth of gradient accumulation that make the same global
batch, and the state needs no rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer

from saf_titan.data.shards import TokenStream, open_stream, verify_shards
from saf_titan.data.windows import WindowOrder

Split = Literal["train", "calibration", "validation"]
STATE_VERSION = 1


class ShardLoader(BaseDataLoader):
    """Batches of windows of `seq_len` tokens that do not overlap, and the tokens that follow each of theirs.

    The held-out split is cut in two: calibration statistics come from the first half of its windows, the reported
    validation loss from the second.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        path: str = ""
        """Folder that holds manifest.json."""
        split: Split = "train"
        """Windows to read."""
        seed: int = 1337
        """Seed of the order of windows."""
        shuffle: bool = True
        """Shuffle the windows of each epoch; otherwise in the order of the corpus."""
        infinite: bool = True
        """Begin the next epoch at the end of one; otherwise stop before a batch would be short."""
        verify: bool = False
        """Compare all shards with their digests first."""
        vocab_size: int = 0
        """Rows of the model's embedding, which must cover the corpus. 0: not checked."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        folder = Path(config.path)
        if config.verify:
            verify_shards(folder, part=dp_rank, num_parts=dp_world_size)
        self._stream = open_stream(folder, "train" if config.split == "train" else "val")
        if 0 < config.vocab_size < self._stream.vocab_size:
            raise ValueError(
                f"model.vocab_size is {config.vocab_size}, and {folder} has a vocabulary of {self._stream.vocab_size}; "
                f"set it to {self._stream.vocab_size} or more"
            )
        self._first_window, num_windows = _windows_of(self._stream, config, seq_len)
        self._batch, self._ranks, self._rank = local_batch_size, dp_world_size, dp_rank
        if not config.infinite and num_windows < self._sequences_a_batch:
            raise ValueError(
                f"{folder}: split {config.split!r} has {num_windows} windows of {seq_len} tokens, and one batch of "
                f"{dp_world_size} ranks x {local_batch_size} sequences needs {self._sequences_a_batch}"
            )
        self._order = WindowOrder(num_windows=num_windows, seed=config.seed, shuffle=config.shuffle)
        self._seq_len, self._infinite, self._path = seq_len, config.infinite, config.path
        self._cursor = 0

    @property
    def num_windows(self) -> int:
        """Different sequences there are; the ones after them repeat."""
        return self._order.num_windows

    @property
    def _sequences_a_batch(self) -> int:
        return self._ranks * self._batch

    def window(self, sequence: int) -> int:
        """Number of the window, counted from the start of the corpus split, that holds sequence number `sequence`."""
        return self._first_window + int(self._order.windows(np.array([sequence]))[0])

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while self._infinite or self._cursor + self._sequences_a_batch <= self.num_windows:
            first = self._cursor + self._rank * self._batch
            windows_B = self._first_window + self._order.windows(np.arange(first, first + self._batch))
            # one token more than a window: the last one's target
            starts_B = (windows_B * self._seq_len).tolist()
            ids_BT = np.stack([self._stream.read(start, start + self._seq_len + 1) for start in starts_B])
            # the batch counts as given from here on: a checkpoint is written after the step that used it
            self._cursor += self._sequences_a_batch
            tokens_BT = torch.from_numpy(ids_BT)
            yield {"input": tokens_BT[:, :-1].contiguous()}, tokens_BT[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and what it is a position in; equal on all ranks."""
        return {
            "version": STATE_VERSION,
            "cursor": self._cursor,
            "corpus": self._stream.digest,
            "seq_len": self._seq_len,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved cursor.

        Raises:
            ValueError: the cursor is of another corpus or order, where it would mean other sequences.
        """
        names = {
            "version": "the format of the loader's state",
            "corpus": f"the corpus in {self._path}",
            "seq_len": "training.seq_len",
            "seed": "data.seed",
            "shuffle": "data.shuffle",
        }
        for field, here in self.state_dict().items():
            saved = state_dict.get(field)
            if field != "cursor" and saved != here:
                raise ValueError(
                    f"{names[field]} was {saved} when the checkpoint was saved, and is {here} now; "
                    "go on with the old one, or start a new run in another dump_folder (with its weights: "
                    "checkpoint.initial_load_model_only = true)"
                )
        self._cursor = int(state_dict["cursor"])


def _windows_of(stream: TokenStream, config: ShardLoader.Config, seq_len: int) -> tuple[int, int]:
    """First window of a split and their number."""
    total = max(0, (len(stream) - 1) // seq_len)
    half = total // 2
    first, num_windows = {"train": (0, total), "calibration": (0, half), "validation": (half, total - half)}[
        config.split
    ]
    if num_windows == 0:
        needed = (2 if config.split == "calibration" else 1) * seq_len + 1
        raise ValueError(
            f"{config.path}: split {config.split!r} has {len(stream)} tokens, and training.seq_len = {seq_len} needs "
            f"at least {needed}; use shorter sequences or more data"
        )
    return first, num_windows


class NullTokenizer(BaseTokenizer):
    """torchtitan builds a tokenizer for every run; a run on token shards has none to use."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        vocab_size: int = 0
        """What get_vocab_size() answers."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        self._vocab_size = config.vocab_size

    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("this run reads token shards; tokenize with rust_data")

    def decode(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("this run reads token shards; decode with rust_data")

    def get_vocab_size(self) -> int:
        return self._vocab_size
