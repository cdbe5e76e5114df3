"""Step time of our trainer against stock torchtitan: same model, data and seed, legs in ABBA order.

    python scripts/bench/stock_overhead.py DATA [--rounds 3] [--steps 60] [--ranks 2]

DATA is a folder of shards with a vocabulary of at most 2048. Prints the losses'
equality, the median step of each leg, and the ratio ours / stock of neighbouring legs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HARNESS = Path(__file__).with_name("stock_run.py")
# the first steps allocate and connect
WARM_UP = 5


def leg(kind: str, data: Path, out: Path, steps: int, ranks: int) -> dict[str, list]:
    """One fresh launch; {"losses": bits, "seconds": per step}."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(HARNESS)]
    root = str(HARNESS.parents[2])
    subprocess.run(
        [*launcher, kind, str(data), str(out), str(steps)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": root},
    )
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    legs: list[tuple[str, float]] = []
    losses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for kind in ("stock", "ours", "ours", "stock"):
                result = leg(kind, args.data, Path(folder) / f"{number}-{len(legs)}.json", args.steps, args.ranks)
                median = statistics.median(result["seconds"][WARM_UP:])
                legs.append((kind, median))
                losses.setdefault(kind, result["losses"])
                print(f"{kind:<6} {1000 * median:8.2f} ms a step (median of {args.steps - WARM_UP})", flush=True)
    ratios = []
    for first, second in zip(legs[::2], legs[1::2], strict=True):
        pair = dict([first, second])
        ratios.append(pair["ours"] / pair["stock"])
    print(f"losses equal to the last bit: {losses['ours'] == losses['stock']}")
    print(f"ours / stock, pair by pair: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")
    print(f"median {statistics.median(ratios):.3f}, range {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
