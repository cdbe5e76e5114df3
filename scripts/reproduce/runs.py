"""Runs of a study: each through the trainer that everybody uses, resumed if interrupted, never repeated."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def parse_arguments(description: str | None, arms: Collection[str]) -> argparse.Namespace:
    """The command line that all studies have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="parquet file with a column text, 10 MB or more")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1338, 1339])
    parser.add_argument("--arms", nargs="+", choices=arms, default=list(arms), metavar="ARM")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--table", action="store_true", help="only print the table")
    return parser.parse_args()


def run_folder(out: Path, arm: str, seed: int) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in arm)
    return out / f"{name}-{seed}"


def train(config: Path, folder: Path, settings: dict[str, Any]) -> None:
    """One run of the trainer in this folder, to its end; one process, and as many threads as OMP_NUM_THREADS says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command += ["-m", "saf_titan.train", "--config", str(config), "--dump_folder", str(folder)]
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        command += [f"--{key}", text]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"SAF_TITAN_DEVICE": "cpu"}
        status = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
    if status:
        raise SystemExit(f"{folder} failed with status {status}; the end of its log:\n{tail(folder / 'log.txt')}")


def branch_of(parent: Path, step: int) -> dict[str, Any]:
    """Settings of a run that goes on from another's checkpoint: weights, moments, data order and schedule."""
    return {"checkpoint.initial_load_path": parent / "checkpoint" / f"step-{step}"}


def seeded(shards: Path, seed: int) -> dict[str, Any]:
    """Settings of a seed: of the initial weights and of the order of the data."""
    return {"data.path": shards, "data.seed": seed, "debug.seed": seed}


def drop_checkpoints(folder: Path) -> None:
    """A finished run that is nobody's parent needs its metrics alone."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text().splitlines()[-lines:])


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What a run has recorded of a kind, in order."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def validations(folder: Path) -> dict[str, float]:
    """The last held-out loss of each phase of a run."""
    return {row["phase"]: row["loss"] for row in rows(folder, "validation")}


def final_loss(folder: Path) -> float | None:
    return validations(folder).get("final")


def spread(values: list[float], form: str = "+.4f") -> str:
    """Mean and, of several, the standard deviation."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def side_by_side(tasks: Iterable[Callable[[], None]], jobs: int) -> None:
    """Run tasks, `jobs` at a time; the first error stops the rest."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
