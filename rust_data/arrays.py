"""Synthetic corpora on disk: .npz shards of whole rows, and a manifest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rust_data import _native
from rust_data.folder import new_folder, whole_file
from rust_data.manifest import NAME, write_manifest

Arrays = dict[str, np.ndarray]


def write_shards(
    out: Path,
    kind: str,
    config: dict[str, Any],
    splits: dict[str, int],
    shard_rows: int,
    generate: Callable[[str, int, int], Arrays],
) -> dict[str, Any]:
    """Writes the splits of a corpus in shards of `shard_rows` rows and returns the manifest.

    A run that fails or is interrupted removes what it has written.

    Args:
        out: A directory without a corpus; it is made if it does not exist.
        kind: Written to the manifest as the format `rust_data.<kind>`.
        config: The settings of the corpus, for the manifest.
        splits: Number of rows of each split.
        shard_rows: Number of rows of a shard; memory grows with it.
        generate: `generate(split, first_row, rows)` returns the arrays of a shard.

    Raises:
        ValueError: if `out` holds a corpus or shards of one, or another run writes there.
    """
    manifest: dict[str, Any] = {"format": f"rust_data.{kind}", "version": 1, "config": config, "splits": {}}
    with new_folder(out, lambda folder: _refuse_shards(folder, splits)) as files:
        for split, rows in splits.items():
            shards = []
            for index, first_row in enumerate(range(0, rows, shard_rows)):
                count = min(shard_rows, rows - first_row)
                path = out / f"{split}_{index:06}.npz"
                files.append(path)
                write_npz(path, generate(split, first_row, count))
                shards.append({"file": path.name, "rows": count, "sha256": _native.sha256(path)})
            manifest["splits"][split] = {"rows": rows, "shards": shards}
        manifest["created_by"] = f"rust_data {_native.__version__}"
        write_manifest(out, manifest)
    return manifest


def _refuse_shards(out: Path, splits: dict[str, int]) -> None:
    if (out / NAME).exists():
        raise ValueError(f"{out} holds a corpus already; choose another --out")
    others = sorted(path for split in splits for path in out.glob(f"{split}_*.npz"))
    if others:
        raise ValueError(f"{others[0]} is there already; delete it or choose another --out")


def write_npz(path: Path, arrays: Arrays) -> None:
    """Writes a complete .npz file or none at all; raises ValueError if another run writes the same file."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
