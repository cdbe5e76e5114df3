"""Check that a checkpoint on disk still holds what was written: each tensor, each object, and the index of them.

A ``.distcp`` file is a sequence of ``torch.save`` streams, one for each tensor shard or Python object. A stream is a
zip archive, and each of its members carries a CRC-32 that torch writes but does not compare when it reads. The index,
``.metadata``, is a pickle without a checksum, so it is compared with the files that it describes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch.distributed.checkpoint import CheckpointException, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from saf_titan.fields.step_folders import INDEX, is_complete, newest_of


class DamagedCheckpoint(ValueError):
    """Raised when a checkpoint does not hold what was written; the message names the file and what it held."""


class CheckedReader(FileSystemReader):
    """Reads a checkpoint as torch does, but first compares what it reads with the checksums."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_index(Path(self.path), super().read_metadata)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        # a rank may read the same shard several times, for several parts of its own
        for index in {item.storage_index: None for item in plan.items}:
            check_stream(Path(self.path), index.fqn, self.storage_data[index])
        return super().read_data(plan, planner)


def read_index(folder: Path, read: Any = None) -> Metadata:
    """Return the index of a checkpoint.

    Raises DamagedCheckpoint if the file is not an index, and OSError if it cannot be read.
    """
    read = read or FileSystemReader(folder).read_metadata
    try:
        metadata = read()
    except OSError:
        raise
    except Exception as error:  # pickle raises errors of every kind over damaged bytes
        raise DamagedCheckpoint(f"{folder / INDEX} is damaged: {_text(error)}") from error
    if not isinstance(metadata, Metadata):
        raise DamagedCheckpoint(f"{folder / INDEX} is damaged: it holds a {type(metadata).__name__}")
    return metadata


def check_stream(folder: Path, name: str, entry: Any) -> None:
    """Raise DamagedCheckpoint unless one stream of a checkpoint matches its checksums.

    Args:
        name: of the tensor or object, for the message.
        entry: its entry in ``Metadata.storage_data``.
    """
    # a transformed stream is no zip archive; torchtitan writes none
    if entry.transform_descriptors:
        return
    path = folder / entry.relative_path
    try:
        with path.open("rb") as file, ZipFile(io.BufferedReader(_Part(file, entry.offset, entry.length))) as archive:
            broken = archive.testzip()
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path}, which holds {name}, is missing") from None
    except OSError:
        raise
    except Exception as error:  # zipfile has an error of its own for each kind of damage
        raise DamagedCheckpoint(f"{path} is damaged: {name} cannot be read ({_text(error)})") from error
    if broken is not None:
        raise DamagedCheckpoint(f"{path} is damaged: {name} does not match its checksum")


def require_complete(folder: Path) -> None:
    """ValueError unless a folder holds a checkpoint that was written to its end; it names those that lie inside."""
    if is_complete(folder):
        return
    if not folder.exists():
        raise ValueError(f"{folder} does not exist: give the folder of a checkpoint, <run>/checkpoint/step-N")
    newest = newest_inside(folder)
    hint = f"; give one that lies in it, for example {newest}" if newest is not None else ""
    raise ValueError(f"{folder} is not a complete checkpoint: it has no {INDEX}{hint}")


def newest_inside(folder: Path) -> Path | None:
    """The newest complete checkpoint in the folder of a run, or in that of its checkpoints; None if there is none."""
    return newest_of(chain(folder.glob("step-*"), folder.glob("*/step-*")))


def damages(folder: Path) -> Iterator[str]:
    """Yield every fault of a checkpoint, one line each; none if it holds what was written. Reads all files.

    Raises ValueError if the folder holds no complete checkpoint, and OSError if a file cannot be read.
    """
    require_complete(folder)
    try:
        metadata = read_index(folder)
        faults = list(_index_faults(folder, metadata))
        streams = [(index.fqn, entry) for index, entry in metadata.storage_data.items()]
        files = _by_file(streams)
    except DamagedCheckpoint as error:
        yield str(error)
        return
    except Exception as error:  # a damaged pickle may hold values of any type in any place
        yield f"{folder / INDEX} is damaged: {_text(error)}"
        return
    yield from faults
    for name, entry in streams:
        try:
            check_stream(folder, name, entry)
            expected = metadata.state_dict_metadata.get(name)
            if isinstance(expected, TensorStorageMetadata):
                _require_shape(folder, name, entry, expected)
        except DamagedCheckpoint as error:
            yield str(error)
    for file, parts in files.items():
        yield from _gaps(folder / file, parts)


def _index_faults(folder: Path, metadata: Metadata) -> Iterator[str]:
    """Yield contradictions inside the index: every value must be described, named and stored exactly once."""
    index = folder / INDEX
    names = {key: ".".join(map(str, path)) for key, path in metadata.planner_data.items()}
    stored = set()
    for key, described in metadata.state_dict_metadata.items():
        if names.pop(key, None) != key:
            yield f"{index} is damaged: it gives {key} another name in the nested state"
        if not isinstance(described, TensorStorageMetadata):
            stored.add(MetadataIndex(key))
            continue
        shards = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in described.chunks}
        inside = all(
            start >= 0 and start + length <= total
            for offsets, sizes in shards.items()
            for start, length, total in zip(offsets, sizes, described.size, strict=True)
        )
        if not inside or sum(map(math.prod, shards.values())) != math.prod(described.size):
            yield f"{index} is damaged: the shards of {key} do not make up its shape {tuple(described.size)}"
        stored |= {MetadataIndex(key, chunk.offsets) for chunk in described.chunks}
    for key in names:
        yield f"{index} is damaged: it names {key} and does not describe it"
    for lost in sorted({entry.fqn for entry in stored ^ set(metadata.storage_data)}):
        yield f"{index} is damaged: it does not agree with itself about where {lost} is stored"


def _require_shape(folder: Path, name: str, entry: Any, expected: TensorStorageMetadata) -> None:
    """Raise DamagedCheckpoint unless a shard has the dtype of its tensor and one of the shapes in the index."""
    with (folder / entry.relative_path).open("rb") as file:
        file.seek(entry.offset)
        try:
            shard = torch.load(io.BytesIO(file.read(entry.length)), weights_only=True, map_location="cpu")
            fits = shard.dtype == expected.properties.dtype and shard.shape in [c.sizes for c in expected.chunks]
        except Exception as error:
            raise DamagedCheckpoint(f"{folder / entry.relative_path} is damaged: {name}, {_text(error)}") from error
    if not fits:
        raise DamagedCheckpoint(
            f"{folder / INDEX} is damaged: it gives {name} a shape or dtype that differs from {entry.relative_path}"
        )


def _by_file(streams: list[tuple[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    """Return (first byte, end) of every stream, by file, ascending."""
    files: dict[str, list[tuple[int, int]]] = {}
    for _, entry in streams:
        files.setdefault(entry.relative_path, []).append((entry.offset, entry.offset + entry.length))
    return {file: sorted(parts) for file, parts in files.items()}


def _gaps(path: Path, parts: list[tuple[int, int]]) -> Iterator[str]:
    """Yield gaps and overlaps: streams follow each other directly, so a gap is a stream that the index has lost."""
    if not path.is_file():
        return
    borders = [(0, 0), *parts, (path.stat().st_size, 0)]
    for (_, end), (start, _) in pairwise(borders):
        if end != start:
            yield f"{path} and {INDEX} disagree: bytes {min(end, start)} to {max(end, start)} are of no entry or of two"


def first_cause(error: CheckpointException) -> BaseException:
    """Return the error of the first rank that failed; the exception itself lists all ranks, with their traces."""
    return min(error.failures.items())[1][0] if error.failures else error


def _text(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, if it has one."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


class _Part(io.RawIOBase):
    """A part of an open file, read as if it were a file."""

    def __init__(self, file: io.BufferedIOBase, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._length - self._at))
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(memoryview(buffer)[:wanted])
        self._at += count
        return count
