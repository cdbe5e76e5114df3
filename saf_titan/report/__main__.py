"""Command line of the report."""

import argparse
import sys
from pathlib import Path

from saf_titan.report.write import write_report


def main() -> int:
    """Write the report of a run's folder and print its path."""
    parser = argparse.ArgumentParser(
        prog="python -m saf_titan.report", description="Write report.html into the folder of a run."
    )
    parser.add_argument("run_folder", type=Path, help="dump_folder of the run: it holds metrics.jsonl")
    parser.add_argument("--heads", type=int, default=8, help="static heads whose patterns are drawn (default 8)")
    arguments = parser.parse_args()
    try:
        print(write_report(arguments.run_folder, heads=max(0, arguments.heads)))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
