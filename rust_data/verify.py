"""Tokenizes a random sample of a corpus again, with tiktoken, and compares the ids.

    python -m rust_data.verify DIR [--documents N] [--seed S]

Each sampled document is decoded to text and encoded by tiktoken; the ids must be those in the shard.
The exit status is 0 if all agree, 1 if not, 2 if tiktoken is not installed.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rust_data import _native
from rust_data.arguments import place, whole
from rust_data.manifest import read_manifest
from rust_data.sizes import check_range
from rust_data.tokenizer import GPT2_PATTERN, Tokenizer

_WINDOW_TOKENS = 1 << 16


def reference(tokenizer: Tokenizer) -> Any:
    """Return tiktoken's encoding with the vocabulary of `tokenizer`; nothing is downloaded.

    Raises ValueError if the tokenizer does not have the GPT-2 pattern.
    """
    import tiktoken

    if tokenizer.splitter != "native":
        raise ValueError(f"tokenizer {tokenizer.name}: only the GPT-2 pattern can be verified offline")
    ranks = {token: rank for rank, token in enumerate(tokenizer.native.tokens()) if token}
    special = {"<|endoftext|>": tokenizer.eot}
    return tiktoken.Encoding(tokenizer.name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def verify(directory: Path, num_documents: int = 200, seed: int = 0) -> int:
    """Tokenize sampled documents again with tiktoken, compare the ids, and return the number of documents compared.

    Raises:
        ValueError: at the first document that differs (the message has its shard and position), if no document could
            be compared, or if the corpus has another tokenizer than gpt2.
    """
    check_range(1, 2**31, documents=num_documents)
    check_range(0, 2**64 - 1, seed=seed)
    manifest = read_manifest(directory)
    tokenizer = Tokenizer("gpt2")
    if tokenizer.sha256 != manifest["tokenizer"]["sha256"]:
        raise ValueError(f"{directory}: tokenizer {manifest['tokenizer']['name']}; only gpt2 can be verified")
    encoding = reference(tokenizer)
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    random = np.random.default_rng(seed)
    weights = np.array([shard["tokens"] for shard in shards], dtype=float)
    compared = 0
    if not weights.sum():
        raise ValueError(f"{directory}: holds no tokens")
    for index in random.choice(len(shards), size=num_documents, p=weights / weights.sum()):
        path = directory / shards[index]["file"]
        position = int(random.integers(shards[index]["tokens"]))
        compared += _compare_near(path, position, tokenizer, encoding)
    if not compared:
        raise ValueError(
            f"{directory}: no whole document was found within {_WINDOW_TOKENS} tokens of a sampled position, so "
            f"nothing was compared"
        )
    return compared


def _compare_near(path: Path, position: int, tokenizer: Tokenizer, encoding: Any) -> int:
    """Compare the first whole document that starts after token `position`.

    Returns 1, or 0 if no whole document ends within `_WINDOW_TOKENS` tokens. Raises ValueError if the ids differ.
    """
    if position >= (tokens := _native.read_header(path)["tokens"]):
        raise ValueError(f"{path}: has {tokens} tokens, fewer than its manifest says; tokenize again")
    tokens = _native.read_tokens(path, position, _WINDOW_TOKENS)
    ends = np.flatnonzero(tokens == tokenizer.eot)
    if len(ends) < 2:
        return 0
    ids = tokens[ends[0] + 1 : ends[1]]
    text = tokenizer.decode_bytes(ids).decode("utf-8")
    if encoding.encode_ordinary(text) != ids.tolist():
        raise ValueError(f"{path}: the document at token {position + ends[0] + 1} differs from tiktoken's ids")
    return 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rust_data.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=place, metavar="DIR")
    parser.add_argument("--documents", type=whole, default=200, metavar="N", help="documents to try (default: 200)")
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="which documents (default: 0)")
    args = parser.parse_args(argv)
    try:
        compared = verify(args.directory, args.documents, args.seed)
    except ImportError:
        print("tiktoken is not installed: pip install tiktoken", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{compared} documents agree with tiktoken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
