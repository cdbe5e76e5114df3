"""Fixtures that write and spoil token corpora."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.data.corpus import write_corpus as write_corpus_to


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[..., Path]:
    """Writes a corpus, by default of 5000 different ids in shards of 1000, and returns its folder."""

    def write(
        train: Sequence[int],
        val: Sequence[int] = (),
        *,
        shard_tokens: int = 1000,
        width: int = 2,
        vocab_size: int = 5000,
        name: str = "corpus",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_corpus_to(
            folder, train=train, val=val, vocab_size=vocab_size, eot=4999, shard_tokens=shard_tokens, width=width
        )
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
