"""Corpora and references that several test files share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rust_data.tokenizer import Tokenizer
from rust_data.verify import reference

EOT = 50256
SAMPLE = Path(__file__).parents[2] / "rust_data" / "assets" / "sample_edu.parquet"


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    return Tokenizer("gpt2")


@pytest.fixture(scope="session")
def tiktoken_gpt2(gpt2: Tokenizer) -> Any:
    return reference(gpt2)


@pytest.fixture(scope="session")
def sample_texts() -> list[str]:
    return pq.read_table(SAMPLE, columns=["text"])["text"].to_pylist()


def write_parquet(path: Path, texts: list[Any], row_group_size: int = 50, **options: Any) -> Path:
    pq.write_table(pa.table({"text": texts}), path, row_group_size=row_group_size, **options)
    return path


def write_jsonl(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def read_split(directory: Path, split: str) -> np.ndarray:
    """All tokens of a split, read as the readers of llm.c do."""
    manifest = json.loads((directory / "manifest.json").read_text())
    arrays = []
    for shard in manifest["splits"][split]["shards"]:
        header = np.fromfile(directory / shard["file"], dtype="<i4", count=256)
        assert header[0] == 20240520
        assert header[1] == 1
        tokens = np.fromfile(directory / shard["file"], dtype="<u2", offset=1024)
        assert header[2] == len(tokens)
        arrays.append(tokens)
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.uint16)


def read_all(directory: Path) -> np.ndarray:
    return np.concatenate([read_split(directory, "val"), read_split(directory, "train")])


def shard_bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.bin"))}


def tokenizer_json(gpt2: Tokenizer, **changes: Any) -> dict[str, Any]:
    """GPT-2 as a tokenizer.json, from the merges of the bundled vocabulary."""
    assets = Path(__file__).parents[2] / "rust_data" / "assets" / "gpt2"
    merges = (assets / "vocab.bpe").read_text().splitlines()[1:]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {b: chr(b) for b in printable}
    alphabet |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    spelled = ["".join(alphabet[b] for b in token) for token in gpt2.native.tokens() if token]
    vocab = {token: rank for rank, token in enumerate(spelled)} | {"<|endoftext|>": EOT}
    root = {
        "added_tokens": [{"id": EOT, "content": "<|endoftext|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "dropout": None, "vocab": vocab, "merges": merges},
    }
    return root | changes
