"""A writer of token shards in plain Python, independent of the reader under test and of rust_data."""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

TOKENIZER_SHA256 = hashlib.sha256(b"toy tokenizer").hexdigest()
VOCAB_SIZE = 5000
EOT = 4999

CorpusWriter = Callable[..., Path]


def shard_bytes(ids: Sequence[int], *, width: int = 2, vocab_size: int = VOCAB_SIZE, documents: int = 1) -> bytes:
    """A whole shard file."""
    magic, version = {2: (20240520, 1), 4: (20240801, 7)}[width]
    head = struct.pack("<7i4xQ24x32s", magic, version, len(ids), width, vocab_size, EOT, documents, len(ids), bytes(32))
    head = head[:64] + bytes.fromhex(TOKENIZER_SHA256)
    return head.ljust(1024, b"\0") + struct.pack(f"<{len(ids)}{'H' if width == 2 else 'I'}", *ids)


@pytest.fixture
def write_corpus(tmp_path: Path) -> CorpusWriter:
    """Writes a corpus with `train` and `val` ids cut into shards of the given lengths."""

    def write(
        train: Sequence[int],
        val: Sequence[int] = (),
        *,
        shard_tokens: int = 1000,
        width: int = 2,
        vocab_size: int = VOCAB_SIZE,
        name: str = "corpus",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        splits = {}
        for split, ids in (("train", train), ("val", val)):
            shards = []
            for number, start in enumerate(range(0, len(ids), shard_tokens)):
                part = ids[start : start + shard_tokens]
                content = shard_bytes(part, width=width, vocab_size=vocab_size)
                file = f"{split}_{number:06}.bin"
                (folder / file).write_bytes(content)
                digest = hashlib.sha256(content).hexdigest()
                shards.append({"file": file, "tokens": len(part), "documents": 1, "sha256": digest})
            splits[split] = {"tokens": len(ids), "documents": len(shards), "shards": shards}
        manifest = {
            "format": "rust_data.tokens",
            "version": 1,
            "complete": True,
            "tokenizer": {"name": "toy", "sha256": TOKENIZER_SHA256, "vocab_size": vocab_size, "eot": EOT},
            "dtype": {2: "uint16", 4: "uint32"}[width],
            "seed": 0,
            "shard_tokens": shard_tokens,
            "splits": splits,
            "sources": [],
            "created_by": "tests",
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return write


@pytest.fixture
def edit_manifest() -> Callable[[Path, str, object], None]:
    """Sets a dotted key of a manifest; a number picks a list item."""

    def edit(folder: Path, key: str, value: object) -> None:
        path = folder / "manifest.json"
        root = json.loads(path.read_text())
        *parents, last = key.split(".")
        node = root
        for parent in parents:
            node = node[int(parent) if parent.isdigit() else parent]
        node[int(last) if last.isdigit() else last] = value
        path.write_text(json.dumps(root))

    return edit
