"""Reading the manifest of a directory of token shards."""

import json
from pathlib import Path
from typing import Any

NAME = "manifest.json"
FORMAT = "rust_data.tokens"
FIELDS = ("tokenizer", "dtype", "seed", "splits", "sources")


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a complete corpus.

    Raises:
        ValueError: if the directory has none, with what to do about it, or it is of another kind.
    """
    path = directory / NAME
    if not path.is_file():
        unfinished = (directory / "progress.json").is_file()
        hint = "its run has not finished: go on with --resume" if unfinished else "not a directory of token shards"
        raise ValueError(f"{path}: missing; {hint}")
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise ValueError(f"{path}: a JSON {type(manifest).__name__}, expected the object of {FORMAT!r}")
    if manifest.get("format") != FORMAT or manifest.get("version") != 1:
        raise ValueError(f"{path}: format {manifest.get('format')!r}, expected {FORMAT!r} version 1")
    missing = [name for name in FIELDS if name not in manifest]
    if missing:
        raise ValueError(f"{path}: without {', '.join(missing)}; damaged, tokenize again")
    return manifest


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest whole or not at all."""
    temporary = directory / f"{NAME}.tmp"
    temporary.write_text(json.dumps(manifest, indent=2) + "\n")
    temporary.rename(directory / NAME)
