"""Joins the parts that the machines of an array job wrote (`tokenize --part i/n`) into one corpus.

    python -m rust_data.merge OUT PART_DIR...

Give the parts in their order. Shards are hard-linked, or copied if the file system has no hard links. The parts stay.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rust_data import _native
from rust_data.arguments import place as place_of
from rust_data.folder import new_folder, whole_file
from rust_data.manifest import NAME, SPLITS, read_manifest, write_manifest
from rust_data.sizes import format_count
from rust_data.tokenizer import Tokenizer
from rust_data.tokenizer_file import NAME as TOKENIZER_NAME
from rust_data.tokenizer_file import file_to_keep, keep_file

_WHOLE = (0, 1)
_SAME = ("tokenizer", "dtype", "seed", "version", "format")


def merge(out: Path, parts: list[Path]) -> dict[str, Any]:
    """Joins complete corpora and returns the new manifest.

    Raises:
        ValueError: if a part is not complete, missing, given twice or out of order, differs in tokenizer or seed,
            lacks a shard that its manifest lists, or `out` holds shards.
    """
    manifests = check_parts(parts)
    merged = dict(manifests[0], part=list(_WHOLE), splits={}, sources=merge_sources(manifests))
    # the settings in the first manifest are those of one part
    merged.pop("settings", None)
    tokenizer_file = _tokenizer_file(parts, merged["tokenizer"]["sha256"], out)
    with new_folder(out, refuse_corpus) as files:
        for split in SPLITS:
            shards: list[dict[str, Any]] = []
            for part, manifest in zip(parts, manifests, strict=True):
                for shard in manifest["splits"][split]["shards"]:
                    file = f"{split}_{len(shards):06}.bin"
                    files.append(out / file)
                    _link_or_copy(part / shard["file"], out / file)
                    shards.append(dict(shard, file=file))
            totals = {name: sum(shard[name] for shard in shards) for name in ("tokens", "documents")}
            merged["splits"][split] = totals | {"shards": shards}
        if any(manifest["splits"]["val"].get("cut_document") for manifest in manifests):
            merged["splits"]["val"]["cut_document"] = True
        if tokenizer_file is not None:
            files.append(out / TOKENIZER_NAME)
            keep_file(tokenizer_file, out)
        write_manifest(out, merged)
    return merged


def _tokenizer_file(parts: list[Path], digest: str, out: Path) -> bytes | None:
    """Return the content of the tokenizer.json for `out`, from the first part that has it; None if no part has."""
    for file in (part / TOKENIZER_NAME for part in parts):
        if file.is_file() and (tokenizer := Tokenizer(file)).sha256 == digest:
            return file_to_keep(tokenizer, out)
    return None


def check_parts(parts: list[Path]) -> list[dict[str, Any]]:
    """Check that parts can be joined in this order and return their manifests. Raises the ValueErrors of `merge`."""
    manifests = [read_manifest(part) for part in parts]
    for part, manifest in zip(parts, manifests, strict=True):
        for name in _SAME:
            if manifest[name] != manifests[0][name]:
                raise ValueError(f"{part}: {name} is {manifest[name]}, in {parts[0]} {manifests[0][name]}")
    for part, manifest in zip(parts, manifests, strict=True):
        for shard in (shard for split in SPLITS for shard in manifest["splits"][split]["shards"]):
            if not (part / shard["file"]).is_file():
                raise ValueError(
                    f"{part / shard['file']}: missing, although the manifest lists it; tokenize this part again"
                )
    places = [part.resolve() for part in parts]
    twice = [part for i, part in enumerate(parts) if places[i] in places[:i]]
    if twice:
        raise ValueError(f"{twice[0]}: given more than once")
    _check_numbers(parts, [tuple(manifest.get("part", _WHOLE)) for manifest in manifests])
    return manifests


def refuse_corpus(out: Path) -> None:
    """Raises ValueError if a folder holds a corpus or shards."""
    if (out / NAME).exists():
        raise ValueError(f"{out} holds a corpus already; choose another place")
    _native.refuse_shards(out)


def _check_numbers(parts: list[Path], numbers: list[tuple[int, ...]]) -> None:
    """Raise ValueError unless `numbers` are all parts of one job in their order, or every part is a whole corpus."""
    count = max(count for _, count in numbers)
    expected = [(index, count) for index in range(count)] if count > 1 else [_WHOLE] * len(parts)
    missing = [f"{index}/{count}" for index, count in expected if (index, count) not in numbers]
    if missing:
        raise ValueError(f"part {', '.join(missing)} is missing: give all {count}")
    for place, (part, (index, of)) in enumerate(zip(parts, numbers, strict=True)):
        if (index, of) not in expected[place : place + 1]:
            raise ValueError(f"{part}: part {index}/{of} in place {place} of {count}; give the parts in their order")


def merge_sources(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each input file. If several parts read a file, its counts are added up."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for source in (source for manifest in manifests for source in manifest["sources"]):
        entry = merged.setdefault((source["file"], source["sha256"]), dict(source, documents=0, skipped=0))
        # only parts of a pipeline have the number of tokens of a file, and only of the tokens in that part
        entry.pop("tokens", None)
        entry["documents"] += source["documents"]
        entry["skipped"] += source["skipped"]
    return list(merged.values())


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        with whole_file(target) as temporary:
            shutil.copyfile(source, temporary)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rust_data.merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=place_of, metavar="OUT")
    parser.add_argument("parts", type=place_of, nargs="+", metavar="PART_DIR")
    args = parser.parse_args(argv)
    try:
        merged = merge(args.out, args.parts)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, split in merged["splits"].items():
        print(f"{name}: {format_count(split['tokens'])} tokens in {len(split['shards'])} shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
