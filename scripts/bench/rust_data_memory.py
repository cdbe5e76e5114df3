"""Peak memory of a tokenization run on a large parquet file, made of copies of a smaller one.

python scripts/bench/rust_data_memory.py TEXT.parquet --copies 20 --threads 2
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parquet")
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--row-group-rows", type=int, default=50_000)
    args = parser.parse_args()
    table = pq.read_table(args.parquet, columns=["text"])
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.parquet"
        with pq.ParquetWriter(large, table.schema, compression="snappy") as writer:
            for _ in range(args.copies):
                writer.write_table(table, row_group_size=args.row_group_rows)
        text_mb = args.copies * table["text"].nbytes / 1e6
        file_mb = large.stat().st_size / 1e6
        options = ["--threads", str(args.threads), "--val-tokens", "0", "--quiet"]
        command = [sys.executable, "-m", "rust_data.tokenize", str(large), "--out", f"{folder}/out", *options]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{text_mb:.0f} MB of text in a parquet file of {file_mb:.0f} MB, {args.threads} threads: ", end="")
    print(f"peak RSS {peak:.0f} MiB, {seconds:.1f} s, {text_mb / seconds:.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
