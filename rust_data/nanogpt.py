"""nanoGPT's form of a corpus: train.bin and val.bin, tokens alone, and meta.json beside them.

There is no meta.pkl: nanoGPT's scripts take its presence for a character-level vocabulary.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rust_data.manifest import NAME, read_manifest

META = "meta.json"
_HEADER_BYTES = 1024


def flatten(directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Turns the shards of `directory` into one flat file a split, and the manifest into meta.json; returns that.

    Shards go only when the flat files are durable, so a run that is killed here can be resumed.
    """
    flat = {}
    for name, split in manifest["splits"].items():
        path = directory / f"{name}.bin"
        temporary = directory / f"{name}.bin.tmp"
        with temporary.open("wb") as out:
            for shard in split["shards"]:
                with (directory / shard["file"]).open("rb") as tokens:
                    tokens.seek(_HEADER_BYTES)
                    shutil.copyfileobj(tokens, out, 1 << 22)
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(path)
        flat[name] = {"file": path.name, "tokens": split["tokens"], "documents": split["documents"]}
    meta = dict(manifest, format="nanogpt", splits=flat)
    temporary = directory / f"{META}.tmp"
    temporary.write_text(json.dumps(meta, indent=2) + "\n")
    temporary.rename(directory / META)
    return finish(directory)


def finish(directory: Path) -> dict[str, Any]:
    """Removes the shards that the flat files replace, where any are left; returns what meta.json says."""
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    if (directory / NAME).exists():
        manifest = read_manifest(directory)
        for split in manifest["splits"].values():
            for shard in split["shards"]:
                (directory / shard["file"]).unlink(missing_ok=True)
        (directory / NAME).unlink()
    return dict(json.loads((directory / META).read_text()))
