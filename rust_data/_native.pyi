from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__version__: str

class Tokenizer:
    name: str
    vocab_size: int
    eot: int
    sha256: str
    splitter: str
    @staticmethod
    def gpt2() -> Tokenizer: ...
    @staticmethod
    def from_tokenizer_json(path: Path) -> Tokenizer: ...
    @staticmethod
    def from_tiktoken_file(path: Path, name: str, pattern: str, eot: int) -> Tokenizer: ...
    @staticmethod
    def from_tokens(tokens: list[bytes], name: str, pattern: str, eot: int) -> Tokenizer: ...
    def encode_batch(self, texts: list[str] | list[bytes], threads: int) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
    def encode_buffer(
        self, data: NDArray[np.uint8], bounds: NDArray[np.int64], threads: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
    def decode(self, ids: NDArray[np.uint32]) -> bytes: ...
    def tokens(self) -> list[bytes]: ...

class DocumentWriter:
    def __init__(self, tokenizer: Tokenizer, out: Path, *, shard_tokens: int, val_tokens: int) -> None: ...
    def write(self, ids: NDArray[Any], offsets: NDArray[np.int64]) -> None: ...
    def copy(self, shard: Path, start: int, count: int) -> None: ...
    def finish(self) -> str: ...

class TokenizeJob:
    def __init__(
        self,
        tokenizer: Tokenizer,
        inputs: list[str],
        out: Path,
        *,
        nanogpt: bool,
        column: str,
        shard_tokens: int,
        val_tokens: int,
        seed: int,
        threads: int,
        part: tuple[int, int],
        skip_errors: bool,
        memory: int | None,
        resume: bool,
    ) -> None: ...
    def run(self) -> str: ...
    def plan(self) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]: ...
    def passed_over(self) -> list[tuple[str, str]]: ...
    def progress(self) -> tuple[int, int, int, int, int, int, int]: ...
    def cancel(self) -> None: ...

def read_header(path: Path) -> dict[str, Any]: ...
def read_tokens(path: Path, start: int, count: int) -> NDArray[np.uint32]: ...
def sha256(path: Path) -> str: ...
def refuse_shards(directory: Path) -> None: ...
def mqar(
    inputs: NDArray[np.int32],
    labels: NDArray[np.int32],
    *,
    vocab_size: int,
    pairs: int,
    power_a: float,
    seed: int,
    first_row: int,
    threads: int,
) -> tuple[int, int]: ...
def zoology_mqar(
    inputs: NDArray[np.int32],
    labels: NDArray[np.int32],
    *,
    vocab_size: int,
    pairs: int,
    slot_weights: NDArray[np.float64],
    seed: int,
) -> None: ...
def class_tokens(
    tokens: NDArray[np.int32],
    labels: NDArray[np.int32],
    *,
    classes: int,
    distinct: int,
    common: int,
    gamma: float | None,
    num_distinct: int,
    deterministic: bool,
    shared_query: bool,
    seed: int,
    first_row: int,
    threads: int,
) -> None: ...
def mix_heads(
    x: NDArray[Any],
    y: NDArray[Any],
    heads: Sequence[tuple[int, int, int]],
    scale: NDArray[np.float32],
    weight: NDArray[np.float32],
    inv_z: NDArray[np.float32],
    spectra: NDArray[np.float32],
    heavy: NDArray[np.int64],
    *,
    transpose: bool,
    threads: int,
) -> None: ...
