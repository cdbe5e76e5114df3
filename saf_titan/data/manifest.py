"""Reads the manifest of a token corpus, which `rust_data.tokenize` wrote, and checks it field by field."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

FILE_NAME = "manifest.json"
META_NAME = "meta.json"
FORMAT = "rust_data.tokens"
NANOGPT_FORMAT = "nanogpt"
VERSION = 1
BYTES_PER_TOKEN = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One file of a split, as the manifest describes it."""

    file: str
    tokens: int
    documents: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a manifest says of a folder of shards."""

    path: Path
    tokenizer_name: str
    tokenizer_sha256: str
    vocab_size: int
    eot: int
    dtype: str
    splits: dict[str, tuple[ShardEntry, ...]]

    def digest(self, split: str) -> str:
        """Return a digest of a split, which is equal for equal bytes, wherever the files lie."""
        parts = [self.tokenizer_sha256, *(shard.sha256 for shard in self.splits[split])]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`.

    Raises:
        ValueError: the file does not exist or has another format, the corpus is unfinished, or a field is missing or
            wrong.
    """
    table = read_table(folder / FILE_NAME)
    path = table.path
    table.expect("format", FORMAT)
    table.expect("version", VERSION)
    if not table.get("complete", bool):
        raise ValueError(f"{path}: the corpus is unfinished; run rust_data.tokenize again with --resume")
    tokenizer, splits = table.table("tokenizer"), table.table("splits")
    return Manifest(
        path=path,
        tokenizer_name=tokenizer.get("name", str),
        tokenizer_sha256=tokenizer.get("sha256", str),
        vocab_size=tokenizer.get("vocab_size", int),
        eot=tokenizer.get("eot", int),
        dtype=_read_dtype(table),
        splits={name: _read_split(splits.table(name)) for name in splits.names()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NanoGPTMeta:
    """The file that `rust_data.tokenize --format nanogpt` writes beside its token files, which have no header."""

    path: Path
    vocab_size: int
    eot: int
    dtype: str
    tokens: dict[str, int]
    """File name -> number of ids in the file."""


def read_nanogpt_meta(folder: Path) -> NanoGPTMeta | None:
    """Read `folder/meta.json`; return None if there is none, or if another program wrote it.

    Raises:
        ValueError: a field is missing or wrong.
    """
    path = folder / META_NAME
    try:
        root = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); remove it, or tokenize again") from None
    if not isinstance(root, dict) or root.get("format") != NANOGPT_FORMAT:
        return None
    table = JsonTable(path, "", root)
    tokenizer, splits = table.table("tokenizer"), table.table("splits")
    files = [file for name in splits.names() for file in splits.table(name).tables("shards")]
    return NanoGPTMeta(
        path=path,
        vocab_size=tokenizer.get("vocab_size", int),
        eot=tokenizer.get("eot", int),
        dtype=_read_dtype(table),
        tokens={file.get("file", str): file.get("tokens", int) for file in files},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerEntry:
    """The tokenizer that a corpus was made with."""

    path: Path
    """The file that names the tokenizer."""
    name: str
    sha256: str


def read_tokenizer(corpus: Path) -> TokenizerEntry | None:
    """Return the tokenizer that the manifest of a corpus names; None if `rust_data` wrote no manifest there.

    corpus: a folder, or one of its .bin files.

    Raises:
        ValueError: the manifest is not JSON, or a field is missing or wrong.
    """
    folder = corpus.parent if corpus.is_file() else corpus
    for path in (folder / FILE_NAME, folder / META_NAME):
        if not path.is_file():
            continue
        try:
            root = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read ({error})") from None
        if isinstance(root, dict) and root.get("format") in (FORMAT, NANOGPT_FORMAT):
            table = JsonTable(path, "", root).table("tokenizer")
            return TokenizerEntry(path=path, name=table.get("name", str), sha256=table.get("sha256", str))
    return None


def read_table(path: Path, *, remedy: str = "") -> "JsonTable":
    """Read a file that holds one JSON object.

    remedy: for the error, what to do if the file does not exist.

    Raises:
        ValueError: the file cannot be read, or does not hold a JSON object.
    """
    try:
        root = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        advice = f"; {remedy}" if remedy else ""
        raise ValueError(f"{path}: cannot be read ({error.strerror}){advice}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None
    return JsonTable(path, "", root)


def _read_dtype(table: "JsonTable") -> str:
    dtype = table.get("dtype", str)
    if dtype not in BYTES_PER_TOKEN:
        raise ValueError(f"{table.path}: dtype is {dtype!r}, and must be {' or '.join(BYTES_PER_TOKEN)}")
    return dtype


def _read_split(split: "JsonTable") -> tuple[ShardEntry, ...]:
    shards = tuple(
        ShardEntry(
            file=shard.get("file", str),
            tokens=shard.get("tokens", int),
            documents=shard.get("documents", int),
            sha256=shard.get("sha256", str),
        )
        for shard in split.tables("shards")
    )
    split.expect("tokens", sum(shard.tokens for shard in shards))
    return shards


class JsonTable:
    """A JSON object together with its place in the file, which every error names."""

    def __init__(self, path: Path, place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: {place or 'the file'} must be an object")
        self._path, self._place, self._value = path, place, value

    @property
    def path(self) -> Path:
        return self._path

    def _name(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def names(self) -> list[str]:
        return list(self._value)

    def get(self, key: str, kind: type[T]) -> T:
        if key not in self._value:
            raise ValueError(f"{self._path}: {self._name(key)} is missing")
        value = self._value[key]
        if type(value) is not kind:
            raise ValueError(f"{self._path}: {self._name(key)} is {value!r}, and must be of type {kind.__name__}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{self._path}: {self._name(key)} is {value}, which is negative")
        return value

    def has(self, key: str, kind: type) -> bool:
        """Return whether the object has the key, with a value of exactly this type."""
        return type(self._value.get(key)) is kind

    def expect(self, key: str, wanted: str | int) -> None:
        value = self.get(key, type(wanted))
        if value != wanted:
            raise ValueError(f"{self._path}: {self._name(key)} is {value!r}, and {wanted!r} is expected")

    def table(self, key: str) -> "JsonTable":
        return JsonTable(self._path, self._name(key), self.get(key, dict))

    def tables(self, key: str) -> list["JsonTable"]:
        items = self.get(key, list)
        return [JsonTable(self._path, f"{self._name(key)}[{i}]", item) for i, item in enumerate(items)]
