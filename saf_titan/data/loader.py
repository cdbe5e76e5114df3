"""Gives windows of token files to torchtitan, in a seeded order."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torchtitan.components.tokenizer import BaseTokenizer

from saf_titan.data.corpus import open_stream
from saf_titan.data.cursor import CursorLoader
from saf_titan.data.shards import verify_shards
from saf_titan.data.windows import Split, WindowOrder, split_windows


class ShardLoader(CursorLoader):
    """Yields batches of windows of `seq_len` tokens, and as targets the token that follows each token.

    Windows do not overlap. The windows of the held-out split are cut in two: the first half is for calibration, the
    second half for the reported validation loss.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CursorLoader.Config):
        path: str = ""
        """Folder that holds manifest.json or .bin files, or one .bin file."""
        corpus_vocab_size: int = 0
        """Size of the vocabulary, for .bin files that do not store it. 0: the files store it."""
        split: Split = "train"
        """The split whose windows are read."""
        max_tokens: int = 0
        """Read only the first windows of the split, as many as have this many tokens, and at least one. 0: all."""
        seed: int = 1337
        """Seed of the order of windows."""
        shuffle: bool = True
        """Shuffle the windows of each epoch; otherwise in the order of the corpus."""
        verify: bool = False
        """Compare all shards with their digests first; each rank reads a part of them."""
        vocab_size: int = 0
        """Rows of the model's embedding, which must cover the corpus. 0: not checked."""

        def for_calibration(self, seed: int, *, held_out: bool = True) -> Self:
            return replace(self, split="calibration" if held_out else "train", seed=seed, shuffle=True, verify=False)

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, **shares: Any) -> None:
        super().__init__(config, dp_world_size=dp_world_size, dp_rank=dp_rank, seq_len=seq_len, **shares)
        path = Path(config.path)
        if config.verify:
            verify_shards(path, part=dp_rank, num_parts=dp_world_size)
        split = "train" if config.split == "train" else "val"
        self._stream = open_stream(path, split, vocab_size=config.corpus_vocab_size)
        if config.vocab_size:
            require_covered(str(path), self._stream.vocab_size, config.vocab_size)
        try:
            self._first_window, num_windows = split_windows(len(self._stream), config.split, seq_len)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if config.max_tokens:
            num_windows = min(num_windows, max(1, config.max_tokens // seq_len))
        self._order = WindowOrder(num_windows=num_windows, seed=config.seed, shuffle=config.shuffle)
        self._path, self.num_windows = config.path, num_windows

    def window(self, sequence: int) -> int:
        """Return which window sequence number `sequence` is; windows are counted from the start of the split."""
        return self._first_window + int(self._order.windows(np.array([sequence]))[0])

    def _read(self, sequences_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        windows_B = self._first_window + self._order.windows(sequences_B)
        # one token more than a window has: the target of its last token
        starts_B = (windows_B * self._seq_len).tolist()
        tokens_BT = torch.from_numpy(
            np.stack([self._stream.read(start, start + self._seq_len + 1) for start in starts_B])
        )
        # the targets are a copy: for a batch of one sequence, contiguous() returns a view of the same memory as the
        # inputs, which would then change with the targets
        return tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].clone()

    def _meaning(self) -> dict[str, Any]:
        return {
            "corpus": self._stream.digest,
            "seq_len": self._seq_len,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def _other_corpus(self) -> str:
        return f"data.path = {self._path} holds other training tokens, or those of another tokenizer,"


def require_covered(source: str, corpus_vocab_size: int, vocab_size: int) -> None:
    """Raise ValueError unless an embedding of `vocab_size` rows covers the ids of a corpus."""
    if vocab_size < corpus_vocab_size:
        raise ValueError(
            f"model.vocab_size is {vocab_size}, and {source} has a vocabulary of {corpus_vocab_size}; "
            f"set it to {corpus_vocab_size} or more"
        )


class NullTokenizer(BaseTokenizer):
    """The tokenizer that torchtitan builds for every run; it does nothing, because token files need no tokenizer."""

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
