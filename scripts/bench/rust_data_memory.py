"""Measure the peak memory of a tokenization run on a large parquet file, or on JSON lines as long as --memory allows.

python scripts/bench/rust_data_memory.py parquet TEXT.parquet --copies 20 --threads 2
python scripts/bench/rust_data_memory.py lines --memory 1G --files 4 --threads 2

The parquet file is made of copies of a smaller one. The texts of the JSON lines, with and without escapes, fill the
longest line that is accepted.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from rust_data.arguments import count

# the longest line is a twelfth of --memory; 64 bytes of it are kept for the field's name, quotes and braces
LARGEST_SHARE, AROUND_TEXT = 12, 64


def write_parquet(args: argparse.Namespace, folder: Path) -> float:
    """Write the large parquet file into a folder and return its megabytes of text."""
    table = pq.read_table(args.parquet, columns=["text"])
    with pq.ParquetWriter(folder / "large.parquet", table.schema, compression="snappy") as writer:
        for _ in range(args.copies):
            writer.write_table(table, row_group_size=args.row_group_rows)
    return float(args.copies * table["text"].nbytes / 1e6)


def write_lines(args: argparse.Namespace, folder: Path) -> float:
    """Write files of the longest lines into a folder and return their megabytes."""
    room = min(args.memory, 10**9) // LARGEST_SHARE - AROUND_TEXT
    # one text has escapes, because the tokenizer unescapes such a text into another buffer
    texts = [words * (room // len(json.dumps(words)[1:-1])) for words in ("plain words ", 'a "word"\n', "plain words ")]
    for number in range(args.files):
        with (folder / f"{number}.jsonl").open("w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    inputs = parser.add_subparsers(required=True)
    command = inputs.add_parser("parquet")
    command.add_argument("parquet")
    command.add_argument("--copies", type=int, default=20)
    command.add_argument("--row-group-rows", type=int, default=50_000)
    command.set_defaults(write=write_parquet)
    command = inputs.add_parser("lines")
    command.add_argument("--files", type=int, default=4)
    command.set_defaults(write=write_lines)
    for command in inputs.choices.values():
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--memory", type=count, default=10**9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in"
        source.mkdir()
        megabytes = args.write(args, source)
        options = ["--threads", str(args.threads), "--memory", str(args.memory), "--val-tokens", "0", "--quiet"]
        command_line = [sys.executable, "-m", "rust_data.tokenize", str(source), "--out", f"{folder}/out", *options]
        start = time.perf_counter()
        subprocess.run(command_line, check=True)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(f"{megabytes:.0f} MB of text, {args.threads} threads, --memory {args.memory / 1e6:.0f} MB: ", end="")
    print(f"peak RSS {peak:.0f} MB, {seconds:.1f} s, {megabytes / seconds:.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
