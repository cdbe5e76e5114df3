"""Command line of the report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from saf_titan.report.compare import COMPARISON_FILE, write_comparison
from saf_titan.report.write import REPORT_FILE, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of a run or the comparison of several, print its path, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m saf_titan.report",
        description="Write one HTML page about a training run: loss, which heads were frozen and why, cost and gain. "
        "Of several runs, write a page that shows them side by side. The runs may still be going on.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN_FOLDER",
        help="dump_folder of a run; it holds metrics.jsonl. Of several, the first is what others are compared with",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help=f"the page (default: {REPORT_FILE} in RUN_FOLDER; of several runs {COMPARISON_FILE} in this folder)",
    )  # fmt: skip
    parser.add_argument(
        "--heads", type=_count, default=8, metavar="N", help="draw the patterns of N heads of each freeze (default: 8)"
    )
    chosen = parser.parse_args(arguments)
    try:
        if len(chosen.runs) > 1:
            print(write_comparison(chosen.runs, chosen.out or Path(COMPARISON_FILE)))
        else:
            print(write_report(chosen.runs[0], heads=chosen.heads, out=chosen.out))
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
