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
    def encode_batch(self, texts: list[str], threads: int) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
    def decode(self, ids: NDArray[np.uint32]) -> bytes: ...
    def tokens(self) -> list[bytes]: ...

class TokenizeJob:
    def __init__(
        self,
        tokenizer: Tokenizer,
        inputs: list[str],
        out: Path,
        *,
        column: str,
        shard_tokens: int,
        val_tokens: int,
        seed: int,
        threads: int,
        part: tuple[int, int],
        skip_errors: bool,
        memory: int,
        resume: bool,
    ) -> None: ...
    def run(self) -> str: ...
    def plan(self) -> list[tuple[str, int, int]]: ...
    def progress(self) -> tuple[int, int, int, int, int, int, int]: ...
    def cancel(self) -> None: ...

def read_header(path: Path) -> dict[str, Any]: ...
def read_tokens(path: Path, start: int, count: int) -> NDArray[np.uint32]: ...
def sha256(path: Path) -> str: ...
