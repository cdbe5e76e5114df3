"""Compare the ids of rust_data with those of tiktoken, on random strings over all Unicode classes.

    python scripts/bench/rust_data_equivalence.py --strings 10M

Prints a line for every million strings and stops at the first difference with exit status 1.
"""

import argparse
import sys
import unicodedata
from itertools import pairwise

import numpy as np

from rust_data import Tokenizer
from rust_data.sizes import parse_count
from rust_data.verify import reference

BATCH = 50_000
MAX_RUNS = 8
MAX_RUN_LENGTH = 7
GRAMMAR = "'" * 3 + "stlvremd  \n\t\r\u00a0\u3000"


def alphabets() -> list[np.ndarray]:
    """Return arrays of code points.

    They are the characters of contractions and spaces, ASCII, the letters a to z, all code points, and then each
    general category.
    """
    points = np.array([c for c in range(0x110000) if not 0xD800 <= c < 0xE000], dtype=np.uint32)
    kinds: dict[str, list[int]] = {}
    for point in points.tolist():
        kinds.setdefault(unicodedata.category(chr(point)), []).append(point)
    by_kind = [np.array(members, dtype=np.uint32) for members in kinds.values()]
    grammar = np.array([ord(c) for c in GRAMMAR], dtype=np.uint32)
    return [grammar, np.arange(128, dtype=np.uint32), np.arange(97, 123, dtype=np.uint32), points, *by_kind]


def strings(random: np.random.Generator, count: int, kinds: list[np.ndarray]) -> list[str]:
    """Return strings of up to `MAX_RUNS` runs of characters of one kind; half of them are of the first three kinds."""
    runs = random.integers(0, MAX_RUNS + 1, size=count)
    lengths = random.integers(1, MAX_RUN_LENGTH + 1, size=runs.sum())
    any_kind, first_kinds = random.integers(len(kinds), size=len(lengths)), random.integers(3, size=len(lengths))
    kind_of_run = np.where(random.random(len(lengths)) < 0.5, first_kinds, any_kind)
    kind_of_char = np.repeat(kind_of_run, lengths)
    starts = np.cumsum([0, *map(len, kinds)])
    sizes = np.array([len(kind) for kind in kinds])[kind_of_char]
    picks = starts[kind_of_char] + (random.random(len(kind_of_char)) * sizes).astype(np.int64)
    text = np.concatenate(kinds)[picks].astype("<u4").tobytes().decode("utf-32-le")
    run_ends = np.concatenate([[0], np.cumsum(lengths)])
    borders = [0, *run_ends[np.cumsum(runs)].tolist()]
    return [text[start:end] for start, end in pairwise(borders)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=parse_count, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    tokenizer = Tokenizer("gpt2")
    encoding = reference(tokenizer)
    random = np.random.default_rng(args.seed)
    kinds = alphabets()
    num_bytes = 0
    for done in range(0, args.strings, BATCH):
        texts = strings(random, min(BATCH, args.strings - done), kinds)
        num_bytes += sum(len(text.encode()) for text in texts)
        ids, offsets = tokenizer.encode_batch(texts, threads=args.threads)
        for i, expected in enumerate(encoding.encode_ordinary_batch(texts, num_threads=args.threads)):
            if ids[offsets[i] : offsets[i + 1]].tolist() != expected:
                print(f"string {done + i} differs: {texts[i]!r}")
                return 1
        if (done + BATCH) % 1_000_000 == 0:
            print(f"{done + BATCH} strings, {num_bytes / 1e6:.0f} MB: no difference", flush=True)
    print(f"{args.strings} strings, {num_bytes / 1e6:.0f} MB, seed {args.seed}: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
