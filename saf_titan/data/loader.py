"""torchtitan's view of a token corpus: one global cursor from which every rank derives its share.

The cursor counts the sequences that all ranks together have been given. A batch takes the next
`ranks x local_batch_size` sequences, and each rank a run of `local_batch_size` among them. So the sequences of an
optimizer step are the same for every number of ranks and every depth of gradient accumulation that make the same global
batch, and the state needs no rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.tokenizer import BaseTokenizer

from saf_titan.data.corpus import open_stream
from saf_titan.data.shards import verify_shards
from saf_titan.data.windows import Split, WindowOrder, split_windows

STATE_VERSION = 1


class ShardLoader(BaseDataLoader):
    """Yields batches of windows of `seq_len` tokens, and as targets the token that follows each token.

    Windows do not overlap.

    The held-out split is cut in two: calibration statistics come from the first half of its windows, the reported
    validation loss from the second.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        path: str = ""
        """Folder that holds manifest.json or .bin files, or one .bin file."""
        corpus_vocab_size: int = 0
        """Size of the vocabulary, for .bin files that do not tell it. 0: they do."""
        split: Split = "train"
        """Windows to read."""
        max_tokens: int = 0
        """Read only the first windows of the split, as many as have this many tokens, and at least one. 0: all."""
        seed: int = 1337
        """Seed of the order of windows."""
        shuffle: bool = True
        """Shuffle the windows of each epoch; otherwise in the order of the corpus."""
        infinite: bool = True
        """Begin the next epoch at the end of one. Otherwise stop there, after a last batch that is filled up with
        sequences whose targets are all ignored, so that every rank gets as many batches."""
        batches_per_step: int = 1
        """Of a loader that stops: batches that are used together, as in a pipeline; it stops after whole steps."""
        verify: bool = False
        """Compare all shards with their digests first."""
        vocab_size: int = 0
        """Rows of the model's embedding, which must cover the corpus. 0: not checked."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        path = Path(config.path)
        if config.verify:
            verify_shards(path, part=dp_rank, num_parts=dp_world_size)
        split = "train" if config.split == "train" else "val"
        self._stream = open_stream(path, split, vocab_size=config.corpus_vocab_size)
        if config.vocab_size:
            require_covered(path, self._stream.vocab_size, config.vocab_size)
        try:
            self._first_window, num_windows = split_windows(len(self._stream), config.split, seq_len)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if config.max_tokens:
            num_windows = min(num_windows, max(1, config.max_tokens // seq_len))
        self._batch, self._ranks, self._rank = local_batch_size, dp_world_size, dp_rank
        self._batches_per_step = config.batches_per_step
        self._order = WindowOrder(num_windows=num_windows, seed=config.seed, shuffle=config.shuffle)
        self._seq_len, self._infinite, self._path = seq_len, config.infinite, config.path
        self._cursor = 0

    @property
    def num_windows(self) -> int:
        """Number of distinct windows in one epoch."""
        return self._order.num_windows

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

    def window(self, sequence: int) -> int:
        """Return which window sequence number `sequence` is; windows are counted from the start of the split."""
        return self._first_window + int(self._order.windows(np.array([sequence]))[0])

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        end = self.num_batches * self._sequences_a_batch
        while self._infinite or self._cursor < end:
            first = self._cursor + self._rank * self._batch
            sequences_B = np.arange(first, first + self._batch)
            windows_B = self._first_window + self._order.windows(sequences_B)
            # one token more than a window: the last one's target
            starts_B = (windows_B * self._seq_len).tolist()
            ids_BT = np.stack([self._stream.read(start, start + self._seq_len + 1) for start in starts_B])
            # the batch counts as given from here on: a checkpoint is written after the step that used it
            self._cursor += self._sequences_a_batch
            tokens_BT = torch.from_numpy(ids_BT)
            # a copy: of a batch of one, contiguous() would be a view, and the inputs would change with it
            targets_BT = tokens_BT[:, 1:].clone()
            if not self._infinite:
                targets_BT[torch.from_numpy(sequences_B >= self.num_windows)] = IGNORE_INDEX
            yield {"input": tokens_BT[:, :-1].contiguous()}, targets_BT

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor and the settings that give it its meaning; they are equal on all ranks."""
        return {
            "version": STATE_VERSION,
            "cursor": self._cursor,
            "corpus": self._stream.digest,
            "seq_len": self._seq_len,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved cursor.

        Raises:
            ValueError: the cursor belongs to another corpus or order, so that it would point at other sequences.
        """
        names = {
            "version": "the format of the loader's state",
            "seq_len": "training.seq_len",
            "seed": "data.seed",
            "shuffle": "data.shuffle",
        }
        remedy = (
            "go on with the old one, or start a new run in another dump_folder (with its weights: "
            "checkpoint.initial_load_model_only = true)"
        )
        here = self.state_dict()
        for field, name in names.items():
            saved = state_dict.get(field)
            if saved != here[field]:
                raise ValueError(
                    f"{name} was {saved} when the checkpoint was saved, and is {here[field]} now; {remedy}"
                )
        if state_dict.get("corpus") != here["corpus"]:
            raise ValueError(
                f"data.path = {self._path} holds other training tokens, or those of another tokenizer, than the run "
                f"was trained on when the checkpoint was saved; {remedy}"
            )
        self._cursor = int(state_dict["cursor"])


def require_covered(path: Path, corpus_vocab_size: int, vocab_size: int) -> None:
    """Raise ValueError unless an embedding of `vocab_size` rows covers the ids of a corpus."""
    if vocab_size < corpus_vocab_size:
        raise ValueError(
            f"model.vocab_size is {vocab_size}, and {path} has a vocabulary of {corpus_vocab_size}; "
            f"set it to {corpus_vocab_size} or more"
        )


class NullTokenizer(BaseTokenizer):
    """Stands where torchtitan builds a tokenizer for every run: a run on token files needs none."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        vocab_size: int = 0
        """The value that get_vocab_size() returns."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        self._vocab_size = config.vocab_size

    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("this run reads token shards; tokenize with rust_data")

    def decode(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("this run reads token shards; decode with rust_data")

    def get_vocab_size(self) -> int:
        return self._vocab_size
