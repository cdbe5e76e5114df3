"""A writer of token corpora in plain Python, independent of the reader under test and of rust_data."""

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

TOKENIZER_SHA256 = hashlib.sha256(b"toy tokenizer").hexdigest()


def shard_bytes(ids: Sequence[int] | np.ndarray, *, width: int, vocab_size: int, eot: int, documents: int = 1) -> bytes:
    """A whole shard file."""
    magic, version = {2: (20240520, 1), 4: (20240801, 7)}[width]
    words = struct.pack("<7i4xQ24x", magic, version, len(ids), width, vocab_size, eot, documents, len(ids))
    head = words + bytes.fromhex(TOKENIZER_SHA256)
    return head.ljust(1024, b"\0") + np.asarray(ids).astype(f"<u{width}").tobytes()


def write_corpus(
    folder: Path,
    *,
    train: Sequence[int] | np.ndarray,
    val: Sequence[int] | np.ndarray = (),
    vocab_size: int,
    eot: int,
    shard_tokens: int = 10_000,
    width: int = 2,
    tokenizer: str = "toy",
) -> None:
    """Write the splits, cut into shards of `shard_tokens` ids, and their manifest into an existing folder."""
    splits = {}
    for split, ids in (("train", train), ("val", val)):
        shards = []
        for number, start in enumerate(range(0, len(ids), shard_tokens)):
            part = ids[start : start + shard_tokens]
            content = shard_bytes(part, width=width, vocab_size=vocab_size, eot=eot)
            file = f"{split}_{number:06}.bin"
            (folder / file).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            shards.append({"file": file, "tokens": len(part), "documents": 1, "sha256": digest})
        splits[split] = {"tokens": len(ids), "documents": len(shards), "shards": shards}
    manifest = {
        "format": "rust_data.tokens",
        "version": 1,
        "complete": True,
        "tokenizer": {"name": tokenizer, "sha256": TOKENIZER_SHA256, "vocab_size": vocab_size, "eot": eot},
        "dtype": {2: "uint16", 4: "uint32"}[width],
        "seed": 0,
        "shard_tokens": shard_tokens,
        "splits": splits,
        "sources": [],
        "created_by": "tests",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
