"""Checks token shards (headers, counts, digests) and prints the first documents as text.

    python -m rust_data.inspect DIR|FILE [--documents N] [--no-digest]

The exit status is 0 if everything agrees and 1 if something does not.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rust_data import _native
from rust_data.arguments import place, whole
from rust_data.manifest import read_manifest
from rust_data.sizes import check_range
from rust_data.tokenizer import BUNDLED, Tokenizer

_CHUNK_TOKENS = 1 << 22


def check_shard(path: Path, expected: dict[str, Any] | None = None, digest: bool = True) -> dict[str, Any]:
    """Check the size, documents and ids of a shard against its header, and return the header.

    Args:
        path: The shard.
        expected: The entry of the shard in the manifest (tokens, documents, sha256), which the header must agree with.
        digest: Whether to compare the SHA-256 of the file with the one in the entry.

    Raises:
        ValueError: if something does not agree; the message names the file, the fault and both values.
        OSError: if the file cannot be read.
    """
    header = _native.read_header(path)
    documents = 0
    for start in range(0, header["tokens"], _CHUNK_TOKENS):
        tokens = _native.read_tokens(path, start, _CHUNK_TOKENS)
        if header["vocab_size"] and tokens.max() >= header["vocab_size"]:
            position = start + int(np.argmax(tokens >= header["vocab_size"]))
            raise ValueError(
                f"{path}: id {tokens.max()} at token {position} is not below the vocab size {header['vocab_size']}"
            )
        documents += int(np.count_nonzero(tokens == header["eot"]))
    if header["vocab_size"] and documents != header["documents"]:
        raise ValueError(f"{path}: header says {header['documents']} documents, its tokens say {documents}")
    if expected is None:
        return header
    for name in ("tokens", "documents"):
        if header[name] != expected[name]:
            raise ValueError(f"{path}: {header[name]} {name}, the manifest says {expected[name]}")
    if digest and (found := _native.sha256(path)) != expected["sha256"]:
        raise ValueError(f"{path}: sha256 {found}, the manifest says {expected['sha256']}")
    return header


def documents_of(path: Path, count: int, max_tokens: int = 4096) -> Iterator[np.ndarray]:
    """Yield the ids of the first `count` documents of a shard, each cut to `max_tokens` tokens.

    The first one may be the rest of a document that began in the preceding shard.
    """
    header = _native.read_header(path)
    start = 0
    for _ in range(count):
        tokens = _native.read_tokens(path, start, max_tokens)
        if len(tokens) == 0:
            return
        ends = np.flatnonzero(tokens == header["eot"])
        yield tokens[: ends[0]] if len(ends) else tokens
        while len(tokens) and not len(ends):
            start += len(tokens)
            tokens = _native.read_tokens(path, start, _CHUNK_TOKENS)
            ends = np.flatnonzero(tokens == header["eot"])
        start += int(ends[0]) + 1 if len(ends) else 0


def inspect(path: Path, num_documents: int = 2, digest: bool = True) -> None:
    """Check a shard or a folder of shards and print its contents. Raises the errors of `check_shard`."""
    check_range(0, 2**31, documents=num_documents)
    if path.is_file():
        _print_shard(path, check_shard(path))
        _print_documents(path, num_documents)
        return
    manifest = read_manifest(path)
    tokenizer = manifest["tokenizer"]
    print(f"{path}: {manifest['dtype']}, {tokenizer['name']} ({tokenizer['vocab_size']} ids)")
    for name, split in manifest["splits"].items():
        note = ", ends inside a document" if split.get("cut_document") else ""
        print(f"{name}: {split['tokens']} tokens, {split['documents']} documents, {len(split['shards'])} shards{note}")
        for shard in split["shards"]:
            header = check_shard(path / shard["file"], shard, digest)
            if header["tokenizer_sha256"] != tokenizer["sha256"]:
                raise ValueError(f"{path / shard['file']}: written with another tokenizer than the manifest says")
            _print_shard(path / shard["file"], header)
    for source in manifest["sources"]:
        note = f", {source['skipped']} rows skipped" if source["skipped"] else ""
        note += f", {source['error']}" if source.get("error") else ""
        print(f"from {source['file']}: {source['documents']} documents{note}")
    first = next((shard for split in manifest["splits"].values() for shard in split["shards"]), None)
    if first:
        _print_documents(path / first["file"], num_documents)


def _print_shard(path: Path, header: dict[str, Any]) -> None:
    width = 8 * header["token_bytes"]
    print(f"  {path.name}: {header['tokens']} uint{width} tokens, {header['documents']} documents")


def _print_documents(path: Path, count: int) -> None:
    """Print the first documents of a shard, if it was made with a bundled tokenizer."""
    digest = _native.read_header(path)["tokenizer_sha256"]
    tokenizer = next((known for known in map(Tokenizer, BUNDLED) if known.sha256 == digest), None)
    if tokenizer is None:
        if count:
            print("  documents can be shown as text only for bundled tokenizers")
        return
    for number, ids in enumerate(documents_of(path, count)):
        text = " ".join(tokenizer.decode(ids).split())
        print(f"  document {number}: {text[:300]}{' ...' if len(text) > 300 else ''}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rust_data.inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=place, metavar="DIR|FILE")
    parser.add_argument("--documents", type=whole, default=2, metavar="N", help="documents to print (default: 2)")
    parser.add_argument("--no-digest", action="store_true", help="do not compare SHA-256 digests")
    args = parser.parse_args(argv)
    try:
        if args.no_digest and args.path.is_file():
            raise ValueError("--no-digest: a single file has no manifest with a digest; leave the option out")
        inspect(args.path, args.documents, not args.no_digest)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
