"""Token shards as one long array that is never read whole.

A shard is a header of 256 little-endian int32 and then the token ids, uint16 or uint32. Words of the header:

    0       magic: 20240520 for 2-byte ids, 20240801 for 4-byte ids
    1       version: 1 for 2-byte ids, 7 for 4-byte ids
    2       number of ids, where it fits into 31 bits
    3       bytes an id
    4       size of the vocabulary
    5       id of the end-of-text token
    6       number of documents
    8, 9    number of ids as uint64
    16..23  sha256 of the tokenizer
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from saf_titan.data.manifest import BYTES_PER_TOKEN, Manifest, ShardEntry, read_manifest

HEADER_BYTES = 1024
MAGIC_AND_VERSION = {2: (20240520, 1), 4: (20240801, 7)}


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The shards of a split, end to end. Open it with `open_stream`."""

    files: tuple[Path, ...]
    arrays: tuple[np.ndarray, ...]
    """One memory map a file."""
    ends: tuple[int, ...]
    """Position in the stream behind the last id of each file."""
    vocab_size: int
    digest: str
    """Identity of the stream, from the digests of its shards."""

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids at positions `start` to `stop`, int64; they may lie in any number of shards.

        Raises:
            ValueError: an id outside the vocabulary, which a sound shard cannot hold.
        """
        assert 0 <= start <= stop <= len(self)
        ids = np.empty(stop - start, dtype=np.int64)
        shard = bisect_right(self.ends, start)
        position = start
        while position < stop:
            base = self.ends[shard] - len(self.arrays[shard])
            end = min(stop, self.ends[shard])
            part = ids[position - start : end - start]
            part[:] = self.arrays[shard][position - base : end - base]
            if part.max() >= self.vocab_size:
                raise self._bad_id(shard, position - base, part)
            position, shard = end, shard + 1
        return ids

    def _bad_id(self, shard: int, position: int, ids: np.ndarray) -> ValueError:
        offset = int(np.argmax(ids >= self.vocab_size))
        return ValueError(
            f"{self.files[shard]}: id {ids[offset]} at position {position + offset} lies outside the vocabulary of "
            f"{self.vocab_size}; the file is damaged: set data.verify = true to find what else is, and tokenize again"
        )


def open_stream(folder: Path, split: str) -> TokenStream:
    """Map the shards of a split into memory after comparing headers and sizes with the manifest.

    Raises:
        ValueError: the manifest lacks the split, or a shard is missing or differs from what the manifest says.
    """
    manifest = read_manifest(folder)
    if split not in manifest.splits:
        raise ValueError(f"{manifest.path}: has no split {split!r}; it has {', '.join(map(repr, manifest.splits))}")
    shards = [shard for shard in manifest.splits[split] if shard.tokens]
    files = tuple(folder / shard.file for shard in shards)
    return TokenStream(
        files=files,
        arrays=tuple(_map_shard(file, shard, manifest) for file, shard in zip(files, shards, strict=True)),
        ends=tuple(accumulate(shard.tokens for shard in shards)),
        vocab_size=manifest.vocab_size,
        digest=manifest.digest(split),
    )


def _map_shard(file: Path, shard: ShardEntry, manifest: Manifest) -> np.ndarray:
    width = BYTES_PER_TOKEN[manifest.dtype]
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(HEADER_BYTES)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); the manifest lists it") from None
    if len(head) < HEADER_BYTES:
        raise ValueError(f"{file}: has {size} bytes, fewer than the header's {HEADER_BYTES}; tokenize again")
    words = np.frombuffer(head, dtype="<i4")
    magic, version = MAGIC_AND_VERSION[width]
    expected: list[tuple[str, int | str, int | str]] = [
        ("magic number", int(words[0]), magic),
        ("version", int(words[1]), version),
        ("number of ids", int(words[8:10].view("<u8")[0]), shard.tokens),
        ("number of bytes an id", int(words[3]), width),
        ("vocabulary", int(words[4]), manifest.vocab_size),
        ("end-of-text id", int(words[5]), manifest.eot),
        ("number of documents", int(words[6]), shard.documents),
        ("tokenizer", words[16:24].tobytes().hex(), manifest.tokenizer_sha256),
        ("size in bytes", size, HEADER_BYTES + width * shard.tokens),
    ]
    for field, found, wanted in expected:
        if found != wanted:
            raise ValueError(
                f"{file}: {field} is {found}, and by {manifest.path.name} it is {wanted}; "
                "the file belongs to another corpus or is damaged: tokenize again"
            )
    return np.memmap(file, dtype=f"<u{width}", mode="r", offset=HEADER_BYTES, shape=(shard.tokens,))


def verify_shards(folder: Path, *, part: int = 0, num_parts: int = 1) -> None:
    """Compare every `num_parts`-th shard of all splits, from number `part` on, with its digest; reads these files once.

    Raises:
        ValueError: a shard differs from its digest.
    """
    manifest = read_manifest(folder)
    shards = [shard for split in manifest.splits.values() for shard in split]
    for shard in shards[part::num_parts]:
        file = folder / shard.file
        try:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"{file}: cannot be read ({error.strerror}); the manifest lists it") from None
        if found != shard.sha256:
            raise ValueError(
                f"{file}: sha256 is {found}, and by {manifest.path.name} it is {shard.sha256}; tokenize again"
            )
