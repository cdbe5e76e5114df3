"""Reads token files: their headers, and the files of a split as one stream that is mapped into memory.

llm.c, modded-nanogpt and rust_data write files of a header of 256 little-endian int32 and then the token ids, uint16 or
uint32. Files of nanoGPT hold the ids alone. Words of the header:

    0       magic: 20240520 for 2-byte ids, 20240801 for 4-byte ids
    1       version: 1 for 2-byte ids, 7 for 4-byte ids
    2       number of ids, where it fits into 31 bits
    the words below are rust_data's, and 0 in the files of others
    3       bytes an id
    4       size of the vocabulary
    5       id of the end-of-text token
    6       number of documents
    8, 9    number of ids as uint64
    16..23  sha256 of the tokenizer
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from saf_titan.data.manifest import BYTES_PER_TOKEN, Manifest, ShardEntry, read_manifest

HEADER_BYTES = 1024
MAGIC_AND_VERSION = {2: (20240520, 1), 4: (20240801, 7)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile:
    """A file of token ids, whose header and size have been checked."""

    path: Path
    width: int
    """Bytes an id: 2 or 4."""
    header_bytes: int
    """Bytes before the first id: 1024, or 0 for the ids alone."""
    tokens: int
    vocab_size: int = 0
    """Size of the vocabulary, if the header stores it; otherwise 0."""
    eot: int | None = None
    """Id of the end-of-text token, if the header stores it; otherwise None."""

    def map(self, start: int, stop: int) -> np.ndarray:
        """Map the ids at positions start <= i < stop of the file into memory."""
        offset = self.header_bytes + self.width * start
        return np.memmap(self.path, dtype=f"<u{self.width}", mode="r", offset=offset, shape=(stop - start,))


@dataclass(frozen=True, slots=True)
class Segment:
    """The ids at positions start <= i < stop of a file, which belong to one split."""

    file: TokenFile
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The segments of a split, end to end."""

    segments: tuple[Segment, ...]
    arrays: tuple[np.ndarray, ...]
    """One memory map a segment."""
    ends: tuple[int, ...]
    """Position in the stream behind the last id of each segment."""
    vocab_size: int
    digest: str
    """Identity of the stream, equal for equal ids."""

    @classmethod
    def of(cls, segments: Iterable[Segment], *, vocab_size: int, digest: str) -> "TokenStream":
        """Map segments into memory; empty ones are left out."""
        kept = tuple(segment for segment in segments if segment.stop > segment.start)
        return cls(
            segments=kept,
            arrays=tuple(segment.file.map(segment.start, segment.stop) for segment in kept),
            ends=tuple(accumulate(segment.stop - segment.start for segment in kept)),
            vocab_size=vocab_size,
            digest=digest,
        )

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the ids at positions `start` to `stop` as int64; they may lie in any number of files.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        assert 0 <= start <= stop <= len(self)
        ids = np.empty(stop - start, dtype=np.int64)
        number = bisect_right(self.ends, start)
        position = start
        while position < stop:
            base = self.ends[number] - len(self.arrays[number])
            end = min(stop, self.ends[number])
            part = ids[position - start : end - start]
            part[:] = self.arrays[number][position - base : end - base]
            if part.max() >= self.vocab_size:
                raise self._bad_id(self.segments[number], position - base, part)
            position, number = end, number + 1
        return ids

    def _bad_id(self, segment: Segment, position: int, ids: np.ndarray) -> ValueError:
        offset = int(np.argmax(ids >= self.vocab_size))
        place = segment.start + position + offset
        remedy = (
            "the file is damaged: set data.verify = true to find what else is, and tokenize again"
            if segment.file.vocab_size
            else "raise data.vocab_size if the vocabulary is larger; otherwise the file holds no ids of 2 bytes, or is "
            "damaged"
        )
        return ValueError(
            f"{segment.file.path}: id {ids[offset]} at position {place} lies outside the vocabulary of "
            f"{self.vocab_size}; {remedy}"
        )


def manifest_segments(manifest: Manifest, split: str) -> tuple[Segment, ...]:
    """Return the shards of a split, after comparing headers and sizes with the manifest.

    Raises:
        ValueError: the manifest lacks the split, or a shard is missing or differs from what the manifest says.
    """
    if split not in manifest.splits:
        raise ValueError(f"{manifest.path}: has no split {split!r}; it has {', '.join(map(repr, manifest.splits))}")
    shards = [shard for shard in manifest.splits[split] if shard.tokens]
    files = [_checked_shard(manifest.path.parent / shard.file, shard, manifest) for shard in shards]
    return tuple(Segment(file, 0, file.tokens) for file in files)


def size_and_head(file: Path) -> tuple[int, bytes]:
    """Return the size of a file and as many bytes of its beginning as a header has.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return file.stat().st_size, stream.read(HEADER_BYTES)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); fetch it again, or tokenize again") from None


def _checked_shard(file: Path, shard: ShardEntry, manifest: Manifest) -> TokenFile:
    width = BYTES_PER_TOKEN[manifest.dtype]
    size, head = size_and_head(file)
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
    return TokenFile(
        path=file,
        width=width,
        header_bytes=HEADER_BYTES,
        tokens=shard.tokens,
        vocab_size=manifest.vocab_size,
        eot=manifest.eot,
    )


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
