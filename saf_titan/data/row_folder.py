"""Reads folders of rows that `python -m rust_data.gen` wrote: the manifest, and rows as arrays. Imports no torch.

A folder has a manifest.json and shards `<split>_<number>.npz`, which hold whole rows. The arrays in the shards are not
compressed, so the shards are mapped into memory and only the rows that are asked for are read.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rust_data import _native
from saf_titan.config.own_sections import DataSection
from saf_titan.data.generate import IGNORE_INDEX
from saf_titan.data.manifest import FILE_NAME, JsonTable, read_table
from saf_titan.data.windows import Split

HELD_OUT = ("test", "val", "valid", "validation")
"""Names that the held-out split may have; the first of these that has rows is for calibration and validation."""

_ARRAYS = {"mqar": ("inputs", "labels"), "class_tokens": ("tokens", "labels")}


@dataclass(frozen=True, kw_only=True)
class RowShard:
    """One .npz file of a split."""

    path: Path
    rows: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RowFolder:
    """What the manifest says of a folder of rows; `open_row_folder` reads it."""

    path: Path
    kind: str
    length: int
    """Tokens of a row."""
    vocabulary: int
    """Number of ids, including the answers."""
    settings: dict[str, int | bool]
    """Key of [data] that describes the rows -> its value for these rows."""
    splits: dict[str, tuple[RowShard, ...]]

    @property
    def held_out(self) -> str | None:
        """Name of the split that training does not read; None if no split of such a name has rows."""
        return next((name for name in HELD_OUT if self.num_rows(name)), None)

    def num_rows(self, split: str) -> int:
        return sum(shard.rows for shard in self.splits.get(split, ()))

    def part(self, split: Split) -> tuple[str, int, int]:
        """Return the name of the folder's split that a loader reads, its first row there, and the number of its rows.

        The held-out rows are cut in two: the first half is for calibration, the second half for validation.

        Raises:
            ValueError: the folder has no such split, or no row for the loader.
        """
        name = "train" if split == "train" else self.held_out
        if name is None or not self.num_rows(name):
            wanted = "train" if split == "train" else HELD_OUT[0]
            raise ValueError(f"{self.path} has no rows for {split}: make them with --split {wanted}=ROWS")
        total = self.num_rows(name)
        half = total // 2
        first, number = {"train": (0, total), "calibration": (0, half), "validation": (half, total - half)}[split]
        if not number:
            raise ValueError(f"{self.path} has one held-out row, and calibration and validation need one each")
        return name, first, number

    def digest(self, name: str) -> str:
        """Return a digest of a split, which is equal for equal bytes, wherever the files lie."""
        return hashlib.sha256("\n".join(shard.sha256 for shard in self.splits[name]).encode()).hexdigest()

    def damaged(self) -> list[str]:
        """Return the names of shards that differ from their digests in the manifest. All files are read once."""
        shards = [shard for shards in self.splits.values() for shard in shards]
        return [shard.path.name for shard in shards if _native.sha256(shard.path) != shard.sha256]


class Rows:
    """The rows of one split, mapped into memory.

    Raises:
        ValueError: a shard is missing or does not have the rows that the manifest says.
    """

    def __init__(self, folder: RowFolder, name: str) -> None:
        self._folder = folder
        self._shards = [_shard_arrays(folder, shard) for shard in folder.splits[name]]
        self._ends = np.cumsum([len(inputs_NT) for inputs_NT, _ in self._shards])

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and labels of rows by their numbers, int64 [rows, length].

        Labels are IGNORE_INDEX at positions without a question.

        Raises:
            ValueError: an id lies outside the vocabulary of the manifest.
        """
        inputs, labels = [], []
        for row in rows.tolist():
            number = int(np.searchsorted(self._ends, row, side="right"))
            inputs_NT, labels_N = self._shards[number]
            index = row - int(self._ends[number]) + len(inputs_NT)
            inputs.append(inputs_NT[index])
            labels.append(self._labels(labels_N[index]))
        inputs_NT, labels_NT = np.stack(inputs).astype(np.int64), np.stack(labels).astype(np.int64)
        asked = labels_NT[labels_NT != IGNORE_INDEX]
        if min(inputs_NT.min(), asked.min(initial=0)) < 0 or max(inputs_NT.max(), asked.max(initial=0)) >= (
            self._folder.vocabulary
        ):
            raise ValueError(
                f"{self._folder.path}: rows have ids beyond the vocabulary of {self._folder.vocabulary} in its manifest"
            )
        return inputs_NT, labels_NT

    def _labels(self, label: np.ndarray) -> np.ndarray:
        if self._folder.kind == "mqar":
            return label
        # the class is asked for at the last position; the ids of the classes are the last ones of the vocabulary
        labels_T = np.full(self._folder.length, IGNORE_INDEX, dtype=np.int64)
        labels_T[-1] = self._folder.vocabulary - int(self._folder.settings["classes"]) + int(label)
        return labels_T


def open_row_folder(path: Path, data: DataSection) -> RowFolder:
    """Read the manifest of a folder of rows.

    Raises:
        ValueError: there is no manifest, it is of another kind than data.kind, or a field is missing or wrong.
    """
    remedy = f"write the folder with `python -m rust_data.gen {data.kind.replace('_', '-')} ... --out {path}`"
    table = read_table(path / FILE_NAME, remedy=remedy)
    found = table.get("format", str)
    if found != f"rust_data.{data.kind}":
        raise ValueError(f'{path / FILE_NAME}: holds {found}, and data.kind = "{data.kind}" is wanted; {remedy}')
    table.expect("version", 1)
    config, splits = table.table("config"), table.table("splits")
    settings: dict[str, int | bool]
    if data.kind == "mqar":
        settings = {"pairs": config.get("pairs", int), "vocab_size": config.get("vocab_size", int)}
        vocabulary, length = int(settings["vocab_size"]), config.get("length", int)
    else:
        settings = {name: config.get(name, int) for name in ("classes", "distinct", "common")}
        settings["query_per_class"] = not config.get("shared_query", bool)
        vocabulary = config.get("vocab_size", int) + int(settings["classes"])
        length = sum(config.get("counts", list)) + 1 if config.has("counts", list) else config.get("length", int)
    return RowFolder(
        path=path,
        kind=data.kind,
        length=length,
        vocabulary=vocabulary,
        settings=settings,
        splits={name: _shards(path, splits.table(name)) for name in splits.names()},
    )


def _shards(path: Path, split: JsonTable) -> tuple[RowShard, ...]:
    return tuple(
        RowShard(path=path / shard.get("file", str), rows=shard.get("rows", int), sha256=shard.get("sha256", str))
        for shard in split.tables("shards")
    )


def _shard_arrays(folder: RowFolder, shard: RowShard) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels of a shard, with the types that they have in the file."""
    inputs, labels = (_mapped(shard.path, name) for name in _ARRAYS[folder.kind])
    labels_shape = (shard.rows, folder.length) if folder.kind == "mqar" else (shard.rows,)
    if inputs.shape != (shard.rows, folder.length) or labels.shape != labels_shape:
        raise ValueError(
            f"{shard.path}: holds arrays of {inputs.shape} and {labels.shape}, and by the manifest they should be "
            f"{(shard.rows, folder.length)} and {labels_shape}: write the folder again"
        )
    return inputs, labels


def _mapped(path: Path, name: str) -> np.ndarray:
    """Map one array of an .npz file into memory.

    Raises:
        ValueError: the file is missing or damaged, its array is compressed, or it holds something else than ids.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            if archive.getinfo(f"{name}.npy").compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{path}: is compressed, and must not be: write the folder again with rust_data.gen")
            start = _start_of(path, archive.getinfo(f"{name}.npy"))
            version = np.lib.format.read_magic(member)
            read_header: Any = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = read_header(member)
            header = member.tell()
        if is_fortran or dtype.kind not in "iu":
            raise ValueError(
                f"{path}: {name} must be an array of whole numbers in row-major order: write the folder again"
            )
        return np.memmap(path, dtype=dtype, mode="r", offset=start + header, shape=shape)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error}); write the folder again") from None
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{path}: is damaged ({error}); write the folder again") from None


def _start_of(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the offset of the bytes of a stored member: after its local header, whose length is not in the index."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = np.frombuffer(file.read(4), dtype="<u2").tolist()
    return member.header_offset + 30 + int(name) + int(extra)
