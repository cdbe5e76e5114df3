"""Time the operators against torch's attention and print ratios, after their tests have passed.

    python scripts/bench/run.py                        every benchmark, the CPU suite
    python scripts/bench/run.py static_mix --suite cpu-quick
    python scripts/bench/run.py --suite gpu --device cuda --checked check.json --out gpu.json

On a CPU the tests of an operator must pass before it is timed. On a GPU these tests would take too long and would say
little about the card; there, the records of `gpu_correctness.py` must be ok.
Alternatives are timed in turns in one process. Each ratio is the median time of the baseline divided by that of the
alternative. The next column is the ratio of the fastest samples, which other work on the machine disturbs less. "of
ceiling" is the time saved, as a share of what free static mixing would save.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from model import PLACEMENTS
from registry import BENCHMARKS, Benchmark, Shape
from timing import Timing, machine_line, process_peak_bytes, time_interleaved

ROOT = Path(__file__).parents[2]


def is_checked(benchmark: Benchmark, check: Path | None) -> bool:
    """Return whether a benchmark may be timed: its tests pass, or the records of `gpu_correctness.py` are all ok."""
    if check is None:
        return tests_pass(benchmark.tests)
    if not check.exists():
        return False
    records = [r for r in json.loads(check.read_text()) if r["case"]["backend"] in benchmark.backends]
    return bool(records) and all(record["ok"] for record in records)


@functools.cache
def tests_pass(tests: tuple[str, ...]) -> bool:
    """Run the tests and return whether they pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stdout, file=sys.stderr)
    return run.returncode == 0


def shapes_of(benchmark: Benchmark, suite: str, placement: str | None) -> list[Shape]:
    """The shapes of a suite, each once.

    placement: where whole models have their static heads, instead of what a shape says.
    """
    shapes: list[Shape] = []
    for shape in benchmark.shapes[suite]:
        chosen = shape | {"placement": placement} if placement and "size" in shape else shape
        if chosen not in shapes:
            shapes.append(chosen)
    return shapes


def measure(benchmark: Benchmark, shape: Shape, device: torch.device, rounds: int, clock: str) -> dict[str, Any]:
    """Time one shape and return a record for JSON."""
    runs = benchmark.build(shape, device)
    timings = time_interleaved(runs, device, rounds, clock)
    baseline = next(iter(timings.values()))
    rows = []
    for name, timing in timings.items():
        bound = timings.get(benchmark.ceilings.get(name, ""))
        rows.append(
            {
                "name": name,
                "milliseconds": 1e3 * timing.seconds,
                "spread": timing.spread,
                "runs": timing.runs,
                "ratio": baseline.seconds / timing.seconds,
                "ratio_of_fastest": baseline.fastest / timing.fastest,
                "of_ceiling": _share(baseline, timing, bound),
                "peak_bytes": timing.peak_bytes,
            }
        )
    return {"benchmark": benchmark.name, "shape": {k: str(v) for k, v in shape.items()}, "rows": rows}


def _share(baseline: Timing, timing: Timing, bound: Timing | None) -> float | None:
    """Return the time that an alternative saves, as a share of what the bound saves.

    None without a bound, and where the bound was not faster than the baseline, so that there is nothing to save.
    """
    if bound is None or bound.seconds >= baseline.seconds:
        return None
    return (baseline.seconds - timing.seconds) / (baseline.seconds - bound.seconds)


def markdown(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table for each benchmark."""
    for name in dict.fromkeys(record["benchmark"] for record in records):
        yield f"\n### {name}\n"
        yield "| shape | alternative | ms | spread | ratio to the first | of fastest samples | of ceiling | peak MiB |"
        yield "|---|---|---|---|---|---|---|---|"
        for record in records:
            if record["benchmark"] != name:
                continue
            shape = " ".join(f"{k}={v}" for k, v in record["shape"].items() if k != "size")
            for row in record["rows"]:
                ceiling = "" if row["of_ceiling"] is None else f"{row['of_ceiling']:.0%}"
                peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f}"
                yield (
                    f"| {shape} | {row['name']} | {row['milliseconds']:.2f} | {row['spread']:.0%} "
                    f"| {row['ratio']:.3f} | {row['ratio_of_fastest']:.3f} | {ceiling} | {peak} |"
                )


def main() -> int:
    """Check, time and print; return the exit status: 1 if a check fails or a shape cannot run."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("benchmarks", nargs="*", metavar="benchmark", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--suite", default="cpu", choices=["cpu", "cpu-quick", "gpu"])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        help="static heads of whole models: even, or early with two thirds in the first third of the layers",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each alternative")
    parser.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for busy machines"
    )
    parser.add_argument("--budget-minutes", type=float, default=math.inf, help="start no shape after this time")
    parser.add_argument("--checked", type=Path, help="records of gpu_correctness.py, used instead of the tests")
    parser.add_argument("--out", type=Path, help="also write the records as JSON")
    arguments = parser.parse_args()
    if unknown := set(arguments.benchmarks) - set(names):
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(names)}")
    torch.set_num_threads(arguments.threads)

    records: list[dict[str, Any]] = []
    status = 0
    begin = time.monotonic()
    for benchmark in BENCHMARKS:
        if benchmark.name not in (arguments.benchmarks or names):
            continue
        if not is_checked(benchmark, arguments.checked):
            print(f"{benchmark.name}: not timed, because its tests or checks fail or are missing", file=sys.stderr)
            status = 1
            continue
        for shape in shapes_of(benchmark, arguments.suite, arguments.placement):
            if time.monotonic() - begin > 60 * arguments.budget_minutes:
                print(f"left out, because the time is up: {benchmark.name} {shape}", file=sys.stderr)
                continue
            try:
                record = measure(benchmark, shape, arguments.device, arguments.rounds, arguments.clock)
            except RuntimeError as error:
                # out of memory, or an attention backend that the card does not have
                print(f"left out: {benchmark.name} {shape}: {error}", file=sys.stderr)
                status = 1
                continue
            records.append(record)
            print("\n".join(markdown(records[-1:])), flush=True)
            if arguments.out:
                # written after every shape, so that an interrupted run keeps its records
                report = {"machine": machine_line(arguments.device), "clock": arguments.clock, "records": records}
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            gc.collect()
    if records:
        peak = f"peak {process_peak_bytes() / 2**20:.0f} MiB"
        print(f"\n{machine_line(arguments.device)}, {arguments.clock} clock, {peak}")
    return status


if __name__ == "__main__":
    sys.exit(main())
