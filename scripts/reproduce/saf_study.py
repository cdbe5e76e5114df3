"""What freezing costs: final held-out loss of many ways to freeze, each continued from the same parent, over seeds.

    python scripts/reproduce/saf_study.py --out outputs/saf_study            # all arms, 3 seeds, debug model, CPU
    python scripts/reproduce/saf_study.py --out outputs/saf_study --table    # the table of what is there

Per seed one ordinary run is trained to the end. Its checkpoint at the freeze is the parent of every other arm: same
weights, moments, data order and schedule, so that arms differ by the freeze alone (matched tokens). A run that was
interrupted goes on where it stopped, a finished one is not repeated. Needs the shards of scripts/quickstart.sh.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

# settings of [saf] for each arm, in the order of the table
ARMS: dict[str, dict[str, object]] = {
    "mean 25 %": {"rate": 0.25},
    "mean 50 %": {"rate": 0.5},
    "mean 25 %, by KL": {"rate": 0.25, "selector": "kl"},
    "mean 25 %, by output error": {"rate": 0.25, "selector": "output_error"},
    "mean 50 %, by output error": {"rate": 0.5, "selector": "output_error"},
    "mean 25 %, random, layer-matched": {"rate": 0.25, "selector": "random_layer_matched"},
    "mean 50 %, random, layer-matched": {"rate": 0.5, "selector": "random_layer_matched"},
    "distance only 25 %": {"rate": 0.25, "content": "distance"},
    "uniform 25 %": {"rate": 0.25, "content": "uniform"},
    "random pattern 25 %": {"rate": 0.25, "content": "random"},
    "same heads pruned 25 %": {"rate": 0.25, "content": "prune"},
    "same heads pruned 50 %": {"rate": 0.5, "content": "prune"},
    "Gate-Taylor pruned 25 %": {"rate": 0.25, "content": "prune", "selector": "gate_taylor"},
}
ORDINARY = "ordinary"


def run_folder(out: Path, arm: str, seed: int) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in arm)
    return out / f"{name}-{seed}"


def train(folder: Path, settings: dict[str, object], ranks: int) -> None:
    """One run to its end, with the trainer that everybody uses."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "saf_titan.train", "--config", "configs/debug_cpu.toml", "--dump_folder", str(folder)]
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        command += [f"--{key}", text]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        environment = os.environ | {"SAF_TITAN_DEVICE": "cpu"}
        status = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
    if status:
        raise SystemExit(f"{folder} failed with status {status}; the end of its log:\n{tail(folder / 'log.txt')}")


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text().splitlines()[-lines:])


def run_arm(out: Path, arm: str, seed: int, args: argparse.Namespace) -> None:
    folder = run_folder(out, arm, seed)
    if final_loss(folder) is not None:
        return
    print(f"{arm}, seed {seed}", flush=True)
    freeze_step = args.steps // 2
    settings: dict[str, object] = {
        "debug.seed": seed,
        "data.seed": seed,
        "data.path": args.data,
        "training.steps": args.steps,
        "checkpoint.interval": freeze_step,
        "validator.freq": args.steps,
        "validator.steps": args.validation_steps,
        "report.enable": False,
    }
    if arm == ORDINARY:
        settings["saf.enable"] = False
    else:
        parent = run_folder(out, ORDINARY, seed) / "checkpoint" / f"step-{freeze_step}"
        start = folder / "checkpoint" / parent.name
        if not start.exists():
            shutil.copytree(parent, start)
        settings |= {"saf.enable": True, "saf.step": freeze_step, "saf.seed": seed}
        settings |= {f"saf.{key}": value for key, value in ARMS[arm].items()}
    train(folder, settings, args.ranks)


def validations(folder: Path) -> dict[str, float]:
    """The last held-out loss of each phase of a run."""
    path = folder / "metrics.jsonl"
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["phase"]: line["loss"] for line in lines if line["kind"] == "validation"}


def final_loss(folder: Path) -> float | None:
    return validations(folder).get("final")


def spread(values: list[float]) -> str:
    """Mean and, of several, the standard deviation."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.4f}{deviation}"


def table(out: Path, seeds: list[int]) -> str:
    """Differences to the ordinary run of the same seed, nats a token."""
    baseline = {seed: loss for seed in seeds if (loss := final_loss(run_folder(out, ORDINARY, seed))) is not None}
    lines = [
        f"Ordinary attention: final loss {', '.join(f'{loss:.4f}' for loss in baseline.values())}.",
        "",
        "| arm | seeds | jump at the freeze | final loss minus ordinary's | perplexity |",
        "|---|---|---|---|---|",
    ]
    for arm in ARMS:
        jumps, penalties = [], []
        for seed, ordinary in baseline.items():
            phases = validations(run_folder(out, arm, seed))
            if "final" in phases:
                penalties.append(phases["final"] - ordinary)
                jumps.append(phases["after_freeze"] - phases["before_freeze"])
        if penalties:
            perplexity = f"{math.expm1(statistics.mean(penalties)):+.2%}"
            lines.append(f"| {arm} | {len(penalties)} | {spread(jumps)} | {spread(penalties)} | {perplexity} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--data", default="data/sample_edu", help="token shards")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1338, 1339])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM")
    parser.add_argument("--steps", type=int, default=300, help="of the whole run; the freeze is half-way")
    parser.add_argument("--validation-steps", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args()
    if not args.table:
        for seed in args.seeds:
            for arm in (ORDINARY, *args.arms):
                run_arm(args.out, arm, seed, args)
    print(table(args.out, args.seeds))


if __name__ == "__main__":
    main()
