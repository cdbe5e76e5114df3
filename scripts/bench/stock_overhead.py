"""Compare the step time of our trainer with stock torchtitan, with the same model, data and seed.

    python scripts/bench/stock_overhead.py DATA [--rounds 3] [--steps 60] [--ranks 2] [--section.key=value ...]

DATA is a folder of shards with a vocabulary of at most 2048. Runs are in the order stock, ours, ours, stock. The output
says whether the losses are equal. It gives the median step time of each run, as wall-clock and as processor time, and
the ratio ours / stock of neighbouring runs. `--model.fuse_qkv=false` compares our attention with torchtitan's separate
projections.
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
# the first steps are not counted, because they allocate memory and connect the ranks
WARM_UP = 5
CLOCKS = {"seconds": "wall", "cpu_seconds": "processor"}


def leg(kind: str, data: Path, out: Path, steps: int, ranks: int, overrides: list[str]) -> dict[str, list]:
    """Launch one run and return its {"losses": [hex], "seconds": [float], "cpu_seconds": [float]}, one item a step."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(HARNESS)]
    root = str(HARNESS.parents[2])
    subprocess.run(
        [*launcher, kind, str(data), str(out), str(steps), *overrides],
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
    args, overrides = parser.parse_known_args()
    legs: list[tuple[str, dict[str, float]]] = []
    losses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for kind in ("stock", "ours", "ours", "stock"):
                out = Path(folder) / f"{number}-{len(legs)}.json"
                result = leg(kind, args.data, out, args.steps, args.ranks, overrides)
                medians = {clock: statistics.median(result[clock][WARM_UP:]) for clock in CLOCKS}
                legs.append((kind, medians))
                losses.setdefault(kind, result["losses"])
                times = ", ".join(f"{CLOCKS[clock]} {1000 * median:.2f} ms" for clock, median in medians.items())
                print(f"{kind:<6} a step: {times} (medians of {args.steps - WARM_UP})", flush=True)
    print(f"losses equal to the last bit: {losses['ours'] == losses['stock']}")
    for clock, name in CLOCKS.items():
        pairs = [dict(pair) for pair in zip(legs[::2], legs[1::2], strict=True)]
        ratios = [pair["ours"][clock] / pair["stock"][clock] for pair in pairs]
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"ours / stock, {name}: median {statistics.median(ratios):.3f} of {each}")


if __name__ == "__main__":
    main()
