"""Generates synthetic sequences and writes them to files.

    python -m rust_data.gen mqar --pairs 8 --length 512 --split train=100K --split test=3K --out data/mqar
    python -m rust_data.gen class-tokens --classes 4 --counts 2,14 --split train=10K --out data/classes.npz
    python -m rust_data.gen mqar --pairs 3 --length 24 --preview

--out is a directory (for .npz shards and manifest.json) or, for a single split, one .npz file.
Splits are consecutive rows of one corpus, so they never share a row.
"""

import argparse
import sys
from itertools import accumulate
from typing import Any

from rust_data import class_tokens, mqar
from rust_data.arguments import count, place, whole
from rust_data.arrays import Arrays, write_npz, write_shards
from rust_data.sizes import check_range

# version of our own generators; increase it when a seed gives other rows than before
STREAM_VERSION = 2
_TEST_SEED_OFFSET = 1 << 31
_SHARD_ROWS = 100_000


def _split(text: str) -> tuple[str, int]:
    name, _, rows = text.partition("=")
    if not (name.isidentifier() and rows):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=ROWS, such as train=100K")
    return name, count(rows)


def _counts(text: str) -> tuple[int, int]:
    distinct, _, common = text.partition(",")
    if not (distinct.isdecimal() and common.isdecimal() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r}: expected M,N, such as 2,14")
    return int(distinct), int(common)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m rust_data.gen", description=__doc__, formatter_class=formatter)
    tasks = parser.add_subparsers(dest="task", required=True)

    add = tasks.add_parser("mqar", help="multi-query associative recall").add_argument
    add("--vocab-size", type=count, default=8192, metavar="N", help="default: 8192")
    add("--length", type=count, default=512, metavar="T", help="tokens a row (default: 512)")
    add("--pairs", type=whole, default=8, metavar="K", help="key-value pairs a row (default: 8)")
    add("--power-a", type=float, default=0.01, metavar="A", help="1: queries anywhere, less: earlier (default: 0.01)")
    add("--zoology", action="store_true", help="generate exactly the rows of the published code (zoology)")
    add("--no-fillers", action="store_true", help="with --zoology: zeros instead of torch's random fillers")

    add = tasks.add_parser("class-tokens", help="sequences whose tokens show their class").add_argument
    add("--classes", type=whole, default=4, metavar="K", help="default: 4")
    add("--distinct", type=whole, default=1, metavar="C", help="token types of each class (default: 1)")
    add("--common", type=whole, default=16, metavar="D", help="token types of no class (default: 16)")
    add("--length", type=count, metavar="T", help="tokens a row, including the query; goes with --gamma")
    add("--gamma", type=float, metavar="P", help="probability that a context token is distinct")
    add("--counts", type=_counts, metavar="M,N", help="instead of these two: distinct and common tokens a context")
    add("--deterministic", action="store_true", help="with --counts: types and classes take turns")
    add("--query-per-class", action="store_true", help="a query token for each class (default: one for all)")

    for task in tasks.choices.values():
        add = task.add_argument
        add("--split", type=_split, action="append", metavar="NAME=ROWS", help="a split; repeat it for several")
        add("--out", type=place, metavar="DIR|FILE.npz", help="where to write the rows")
        add("--shard-rows", type=count, metavar="N", help="rows a shard (default: 100K)")
        add("--seed", type=whole, default=0, metavar="S", help="default: 0")
        add("--threads", type=whole, metavar="N", help="default: the CPUs this process may use")
        add("--preview", action="store_true", help="print the first row as readable text")
    return parser.parse_args(argv)


class _MqarTask:
    """Generates rows of MQAR, ours or the published ones, with the settings of the command line."""

    kind = "mqar"

    def __init__(self, args: argparse.Namespace) -> None:
        names = ("vocab_size", "length", "pairs", "power_a", "seed")
        self.config: dict[str, Any] = {name: getattr(args, name) for name in names}
        self.zoology = args.zoology
        self.random_fillers = not args.no_fillers
        self.threads = args.threads

    def manifest_config(self) -> dict[str, Any]:
        if self.zoology:
            return {"procedure": "zoology", **self.config, "random_fillers": self.random_fillers}
        return {"procedure": "rust_data", "stream": STREAM_VERSION, **self.config}

    def rows(self, split_index: int, first_row: int, rows: int) -> mqar.Mqar:
        if not self.zoology:
            return mqar.generate(rows, first_row=first_row, threads=self.threads, **self.config)
        # like the published configuration: seeds of the training split are below 2**31, those of the test split above
        config = dict(self.config, seed=self.config["seed"] + split_index * _TEST_SEED_OFFSET)
        return mqar.generate_zoology(rows, random_fillers=self.random_fillers, **config)

    def preview(self) -> str:
        inputs, labels = self.rows(0, 0, 1)
        return mqar.preview(inputs[0], labels[0], self.config["pairs"])


class _ClassTokensTask:
    """Generates rows of class tokens with the settings of the command line."""

    kind = "class_tokens"
    zoology = False

    def __init__(self, args: argparse.Namespace) -> None:
        names = ("classes", "distinct", "common", "length", "gamma", "counts", "deterministic", "seed")
        self.config: dict[str, Any] = {name: getattr(args, name) for name in names}
        self.config["shared_query"] = not args.query_per_class
        self.threads = args.threads

    def manifest_config(self) -> dict[str, Any]:
        sizes = {name: self.config[name] for name in ("classes", "distinct", "common", "shared_query")}
        return self.config | {"stream": STREAM_VERSION, "vocab_size": class_tokens.vocab_size(**sizes)}

    def rows(self, split_index: int, first_row: int, rows: int) -> class_tokens.ClassTokens:
        return class_tokens.generate(rows, first_row=first_row, threads=self.threads, **self.config)

    def preview(self) -> str:
        row = class_tokens.ClassTokens(*(array[0] for array in self.rows(0, 0, 1)))
        return class_tokens.preview(row, distinct=self.config["distinct"], shared_query=self.config["shared_query"])


def run(args: argparse.Namespace) -> None:
    """Run the command; raises ValueError for wrong settings and OSError if a file cannot be written."""
    if args.task == "mqar" and args.no_fillers and not args.zoology:
        raise ValueError("--no-fillers works only with --zoology; our own rows always have fillers")
    _refuse_unused(args)
    shard_rows = _SHARD_ROWS if args.shard_rows is None else args.shard_rows
    check_range(1, 2**40, shard_rows=shard_rows)
    task = _MqarTask(args) if args.task == "mqar" else _ClassTokensTask(args)
    if args.preview:
        print(task.preview())
        return
    splits = dict(args.split or [])
    if args.out is None or not splits:
        raise ValueError("nothing to write: give --out and at least one --split NAME=ROWS, or --preview")
    if len(splits) < len(args.split):
        raise ValueError("--split: each name may be given once")
    names = list(splits)
    starts = dict(zip(names, accumulate(splits.values(), initial=0), strict=False))

    def generate(split: str, first_row: int, rows: int) -> Arrays:
        offset = 0 if task.zoology else starts[split]
        return task.rows(names.index(split), offset + first_row, rows)._asdict()

    if args.out.suffix == ".npz":
        if args.out.exists():
            raise ValueError(f"{args.out} is there already; delete it or choose another --out")
        if len(splits) > 1:
            raise ValueError(f"{args.out}: one file holds one split; give a directory for {', '.join(splits)}")
        write_npz(args.out, generate(names[0], 0, splits[names[0]]))
    else:
        # the published code draws all rows of a split from one random stream, so a split is one shard
        shard_rows = max(splits.values()) if task.zoology else shard_rows
        write_shards(args.out, task.kind, task.manifest_config(), splits, max(shard_rows, 1), generate)
    print(f"{', '.join(f'{name}: {rows} rows' for name, rows in splits.items())} in {args.out}")


def _refuse_unused(args: argparse.Namespace) -> None:
    """Raise ValueError for options that would have no effect."""
    given = {
        "--split": args.split,
        "--out": args.out,
        "--shard-rows": args.shard_rows,
        "--threads": args.threads,
    }
    unused = [name for name, value in given.items() if value is not None]
    if args.preview and unused:
        raise ValueError(f"--preview prints one row and writes nothing: leave out {', '.join(unused)}")
    if args.shard_rows is not None and getattr(args, "zoology", False):
        raise ValueError("--shard-rows: with --zoology each split is one shard; leave it out")
    if args.threads is not None and getattr(args, "zoology", False):
        raise ValueError("--threads: with --zoology all rows are one random stream, drawn on one thread; leave it out")
    if args.seed and getattr(args, "deterministic", False):
        raise ValueError("--seed: with --deterministic nothing is drawn; leave it out")
    if args.shard_rows is not None and args.out is not None and args.out.suffix == ".npz":
        raise ValueError("--shard-rows: a single .npz file has no shards; leave it out, or give a folder as --out")


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(
            "error: not enough memory for these rows; give a directory as --out and a smaller --shard-rows",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left in --out", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
