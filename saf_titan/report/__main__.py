"""Command line of the report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from saf_titan.report.write import REPORT_FILE, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of a run, print its path, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m saf_titan.report",
        description="Write one HTML page about a training run: loss, which heads were frozen and why, cost and gain. "
        "The run may still be going on.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="dump_folder of the run; it holds metrics.jsonl")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page (default: {REPORT_FILE} in RUN_FOLDER)")
    parser.add_argument(
        "--heads", type=_count, default=8, metavar="N", help="draw the patterns of N heads of each freeze (default: 8)"
    )
    chosen = parser.parse_args(arguments)
    try:
        print(write_report(chosen.run, heads=chosen.heads, out=chosen.out))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of heads; give 0 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
