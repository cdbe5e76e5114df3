"""Reads, checks and writes the manifest of a directory of token shards."""

import json
from pathlib import Path
from typing import Any

from rust_data.folder import whole_file

NAME = "manifest.json"
FORMAT = "rust_data.tokens"
NANOGPT_NAME = "meta.json"
"""Name of the manifest of a corpus in nanoGPT's format."""
SPLITS = ("train", "val")

_TEXT, _COUNT = str, int


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a complete corpus, after a check of every field.

    Raises:
        ValueError: if the directory has no manifest (the message says what to do), or if the manifest is of another
            format or damaged.
        OSError: if the file cannot be read.
    """
    path = directory / NAME
    if not path.is_file():
        raise ValueError(f"{path}: missing; {_what_is_there(directory)}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise ValueError(f"{path}: a JSON {type(manifest).__name__}, expected the object of {FORMAT!r}")
    if manifest.get("format") != FORMAT or manifest.get("version") != 1:
        raise ValueError(f"{path}: format {manifest.get('format')!r}, expected {FORMAT!r} version 1")
    try:
        _check(manifest)
    except _Fault as fault:
        raise ValueError(f"{path}: {fault}; the manifest is damaged: tokenize again") from None
    return manifest


def _what_is_there(directory: Path) -> str:
    if not directory.is_dir():
        return "no such folder"
    if (directory / "progress.json").is_file():
        return "the run that tokenizes has not finished: go on with --resume"
    if (directory / NANOGPT_NAME).is_file():
        return f"the folder holds a corpus in nanoGPT's format ({NANOGPT_NAME}), which has no headers to check"
    return "not a directory of token shards"


class _Fault(Exception):
    """A fault of a manifest, as text."""


def _check(manifest: dict[str, Any]) -> None:
    if manifest.get("complete") is not True:
        raise _Fault(f"complete is {manifest.get('complete')!r}, expected true")
    tokenizer = _get(manifest, "", "tokenizer", dict)
    for name, kind in (("name", _TEXT), ("sha256", _TEXT), ("vocab_size", _COUNT), ("eot", _COUNT)):
        _get(tokenizer, "tokenizer.", name, kind)
    _get(manifest, "", "dtype", _TEXT)
    _get(manifest, "", "seed", _COUNT)
    _check_part(manifest.get("part", [0, 1]))
    splits = _get(manifest, "", "splits", dict)
    for split in SPLITS:
        _check_split(f"splits.{split}.", _get(splits, "splits.", split, dict))
    for index, source in enumerate(_get(manifest, "", "sources", list)):
        place = f"sources[{index}]"
        if not isinstance(source, dict):
            raise _Fault(f"{place} is {source!r}, expected an object")
        for name, kind in (("file", _TEXT), ("sha256", _TEXT), ("documents", _COUNT), ("skipped", _COUNT)):
            _get(source, f"{place}.", name, kind)


def _check_part(part: Any) -> None:
    numbers = isinstance(part, list) and len(part) == 2 and all(type(number) is int for number in part)
    if not (numbers and 0 <= part[0] < part[1]):
        raise _Fault(f"part is {part!r}, expected two numbers [i, n] with 0 <= i < n")


def _check_split(place: str, split: dict[str, Any]) -> None:
    shards = _get(split, place, "shards", list)
    for index, shard in enumerate(shards):
        here = f"{place}shards[{index}]"
        if not isinstance(shard, dict):
            raise _Fault(f"{here} is {shard!r}, expected an object")
        for name, kind in (("file", _TEXT), ("sha256", _TEXT), ("tokens", _COUNT), ("documents", _COUNT)):
            _get(shard, f"{here}.", name, kind)
        if Path(shard["file"]).name != shard["file"]:
            raise _Fault(f"{here}.file is {shard['file']!r}, expected the name of a file in the same folder")
    for total in ("tokens", "documents"):
        found, said = sum(shard[total] for shard in shards), _get(split, place, total, _COUNT)
        if found != said:
            raise _Fault(f"{place}{total} is {said}, but the {total} of its shards add up to {found}")


def _get(table: dict[str, Any], place: str, name: str, kind: type) -> Any:
    words = {_TEXT: "a text", _COUNT: "a number of at least 0", dict: "an object", list: "a list"}
    if name not in table:
        raise _Fault(f"{place}{name} is missing")
    value = table[name]
    if type(value) is not kind or (type(value) is int and value < 0):
        raise _Fault(f"{place}{name} is {value!r}, expected {words[kind]}")
    return value


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Writes the complete manifest or nothing at all."""
    with whole_file(directory / NAME) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n")
