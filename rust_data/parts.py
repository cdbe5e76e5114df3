"""Writes a corpus in parts, one for each task of a pipeline, and joins them to the corpus that one job would write.

A part is a folder of shards with a manifest; all of it is in the split train. The manifest holds how many tokens each
input file gave. So `join` can bring the files into one order, whatever the number of tasks, and cut splits and shards
anew.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from rust_data import _native
from rust_data.folder import lock, new_folder
from rust_data.manifest import FORMAT, write_manifest
from rust_data.merge import check_parts, merge_sources, refuse_corpus
from rust_data.sizes import check_range
from rust_data.tokenizer import Tokenizer
from rust_data.tokenizer_file import NAME as TOKENIZER_NAME
from rust_data.tokenizer_file import file_to_keep, keep_file

_BATCH_BYTES = 1 << 22
"""Amount of text that is encoded at a time, in characters."""


class PartWriter:
    """Writes the i-th of n parts: takes documents and writes shards and a manifest.

    Args:
        folder: The folder of all parts; the part is the folder part-<i>-of-<n> in it. If that exists, from an earlier
            run of the same task, it is replaced when the new part is complete.
        part: (i, n), 0 <= i < n.
        tokenizer: The tokenizer.
        shard_tokens: Tokens a shard of the part.
        threads: Number of threads that encode.

    Raises:
        ValueError: for settings out of range, or if another task writes the same part.
    """

    def __init__(
        self, folder: Path, part: tuple[int, int], tokenizer: Tokenizer, *, shard_tokens: int, threads: int = 1
    ) -> None:
        index, count = part
        if not 0 <= index < count:
            raise ValueError(f"part {index} of {count}: must be in 0 .. {count - 1}")
        self.place = folder / f"part-{index:05}-of-{count:05}"
        self.num_documents = self.num_tokens = 0
        self._part, self._tokenizer, self._shard_tokens, self._threads = part, tokenizer, shard_tokens, threads
        self._unfinished = self.place.with_name(f"{self.place.name}.tmp")
        self._unfinished.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._unfinished, os.O_RDONLY)
        try:
            lock(self._lock, self.place)
            for left in self._unfinished.iterdir():
                left.unlink()
            self._tokenizer_file = file_to_keep(tokenizer, self._unfinished)
            self._writer = _native.DocumentWriter(
                tokenizer.native, self._unfinished, shard_tokens=shard_tokens, val_tokens=0
            )
        except BaseException:
            self.close()
            raise
        self._sources: list[dict[str, Any]] = []
        # documents that wait to be encoded: text, name, index of the source
        self._texts: list[str] = []
        self._names: list[str] = []
        self._source_of: list[int] = []
        self._waiting = 0

    def add(self, text: str, *, file: str = "", name: str = "") -> None:
        """Adds a document after the others.

        Args:
            text: The text of the document; special tokens in it are plain text.
            file: The file that the document comes from, if known. `join` orders the documents by file.
            name: Name of the document, for error messages.

        Raises:
            ValueError: if a text is not a str or cannot be encoded, perhaps at a later call; the message has its name.
        """
        if not isinstance(text, str):
            raise ValueError(f"document {name}: its text is {type(text).__name__}, expected str")
        if not self._sources or self._sources[-1]["file"] != file:
            entry = {"file": file, "bytes": 0, "sha256": "", "documents": 0, "skipped": 0, "tokens": 0}
            self._sources.append(entry)
        self._texts.append(text)
        self._names.append(name)
        self._source_of.append(len(self._sources) - 1)
        self._waiting += len(text)
        if self._waiting >= _BATCH_BYTES:
            self._encode()

    def finish(self) -> dict[str, Any]:
        """Completes the part and returns its manifest."""
        self._encode()
        tokenizer = self._tokenizer
        manifest = {
            "format": FORMAT,
            "version": 1,
            "complete": True,
            "tokenizer": {
                "name": tokenizer.name,
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
                "eot": tokenizer.eot,
            },
            "dtype": "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
            "seed": 0,
            "shard_tokens": self._shard_tokens,
            "part": list(self._part),
            "splits": json.loads(self._writer.finish()),
            "sources": self._sources,
            "created_by": f"rust_data {_native.__version__}",
        }
        keep_file(self._tokenizer_file, self._unfinished)
        write_manifest(self._unfinished, manifest)
        if self.place.exists():
            shutil.rmtree(self.place)
        self._unfinished.rename(self.place)
        self.close()
        return manifest

    def close(self) -> None:
        """Releases the lock of the part. Without a call of `finish` before, no part is written."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _encode(self) -> None:
        if not self._texts:
            return
        try:
            ids, offsets = self._tokenizer.encode_batch(self._texts, self._threads)
        except ValueError as error:
            raise self._name_document(error) from None
        self._writer.write(ids, offsets)
        # plus 1 for the end-of-text token
        lengths = np.diff(offsets) + 1
        for source, length in zip(self._source_of, lengths.tolist(), strict=True):
            self._sources[source]["documents"] += 1
            self._sources[source]["tokens"] += length
        self.num_documents += len(self._texts)
        self.num_tokens += int(lengths.sum())
        self._texts, self._names, self._source_of, self._waiting = [], [], [], 0

    def _name_document(self, error: ValueError) -> ValueError:
        for name, text in zip(self._names, self._texts, strict=True):
            try:
                self._tokenizer.encode(text)
            except ValueError as reason:
                return ValueError(f"document {name}: {reason}")
        return error


def join(
    out: Path, folder: Path, tokenizer: Tokenizer, *, shard_tokens: int = 100_000_000, val_tokens: int = 0
) -> dict[str, Any]:
    """Joins all parts in a folder to the corpus that one job would write, and returns its manifest.

    Documents are ordered by the names of their files; documents of the same file, and documents without a file, are in
    the order of the parts. Splits and shards are cut as in `tokenize`. The parts stay.

    Raises:
        ValueError: if a part is missing, not complete, changed since it was written or of another tokenizer, if a
            task is still running or was stopped, or if `out` holds a corpus.
    """
    check_range(0, 2**63 - 1, val_tokens=val_tokens, shard_tokens=shard_tokens)
    parts = _part_folders(folder)
    manifests = check_parts(parts)
    if manifests[0]["tokenizer"]["sha256"] != tokenizer.sha256:
        raise ValueError(
            f"{folder}: the parts were written with tokenizer {manifests[0]['tokenizer']['name']} (digest "
            f"{manifests[0]['tokenizer']['sha256'][:12]}), not with {tokenizer.name} ({tokenizer.sha256[:12]})"
        )
    tokenizer_file = file_to_keep(tokenizer, out)
    segments = [
        segment for part, manifest in zip(parts, manifests, strict=True) for segment in _segments(part, manifest)
    ]
    # the sort is stable, so pieces of the same file stay in the order of the parts
    segments.sort(key=lambda segment: _place_in_order(segment[0]))
    for part, manifest in zip(parts, manifests, strict=True):
        for shard in manifest["splits"]["train"]["shards"]:
            if _native.sha256(part / shard["file"]) != shard["sha256"]:
                raise ValueError(f"{part / shard['file']}: changed since it was written; run the task again")
    with new_folder(out, refuse_corpus) as files:
        try:
            writer = _native.DocumentWriter(tokenizer.native, out, shard_tokens=shard_tokens, val_tokens=val_tokens)
            for _, path, start, count in segments:
                writer.copy(path, start, count)
            splits = json.loads(writer.finish())
            if not splits["train"]["tokens"] + splits["val"]["tokens"]:
                raise ValueError(f"{folder}: the parts hold no documents")
        except BaseException:
            for pattern in ("train_*.bin*", "val_*.bin*"):
                for left in out.glob(pattern):
                    left.unlink()
            raise
        sources = sorted(merge_sources(manifests), key=lambda source: _place_in_order(source["file"]))
        changed = {"part": [0, 1], "shard_tokens": shard_tokens, "splits": splits, "sources": sources}
        manifest = manifests[0] | changed
        if tokenizer_file is not None:
            files.append(out / TOKENIZER_NAME)
            keep_file(tokenizer_file, out)
        write_manifest(out, manifest)
    return manifest


def _part_folders(folder: Path) -> list[Path]:
    found = sorted(folder.glob("part-*-of-*"))
    parts = [path for path in found if path.suffix != ".tmp"]
    # beside an unfinished part there may be a complete one, of an earlier run of the same task on other documents
    if unfinished := [path for path in found if path.suffix == ".tmp"]:
        raise ValueError(
            f"{unfinished[0]}: the task of this part is still running or has not finished; wait for it or run it "
            "again, or remove the folder if the task is not one of this corpus"
        )
    if not parts:
        raise ValueError(f"{folder}: holds no parts")
    counts = sorted({path.name.rpartition("-of-")[2] for path in parts})
    if len(counts) > 1:
        raise ValueError(f"{folder}: holds parts of {' and of '.join(map(str, map(int, counts)))}; remove the old ones")
    return parts


def _place_in_order(file: str) -> list[str]:
    """Return the sort key with which files are in the order of `tokenize`: folder by folder, not letter by letter."""
    return file.split("/")


def _segments(part: Path, manifest: dict[str, Any]) -> list[tuple[str, Path, int, int]]:
    """Return the pieces of a part in its order: (name of the source, path of the shard, first token, tokens).

    A piece is the tokens of one source in one shard.
    """
    train, val = (manifest["splits"][split] for split in ("train", "val"))
    tokens = [source.get("tokens", 0) for source in manifest["sources"]]
    if val["tokens"] or sum(tokens) != train["tokens"]:
        raise ValueError(f"{part}: not written by a pipeline; join it with rust_data.merge")
    ends = np.cumsum([shard["tokens"] for shard in train["shards"]], dtype=np.int64).tolist()
    found, at = [], 0
    for source, count in zip(manifest["sources"], tokens, strict=True):
        end = at + count
        for shard, shard_end in zip(train["shards"], ends, strict=True):
            start = max(at, shard_end - shard["tokens"])
            if start < min(end, shard_end):
                first = start - (shard_end - shard["tokens"])
                found.append((source["file"], part / shard["file"], first, min(end, shard_end) - start))
        at = end
    return found
