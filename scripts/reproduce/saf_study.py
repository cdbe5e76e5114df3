"""What freezing costs: final held-out loss of many ways to freeze, each continued from the same parent, over seeds.

    python scripts/reproduce/saf_study.py --text TEXT.parquet --out outputs/saf_study            # all arms, 3 seeds
    python scripts/reproduce/saf_study.py --text TEXT.parquet --out outputs/saf_study --table    # what is there

Per seed one ordinary run is trained to the end. Its checkpoint before the freeze is the parent of every other arm
(arms.toml): same weights, moments, data order and schedule, so that arms differ by the freeze alone (matched tokens).
A run that was interrupted goes on where it stopped, a finished one is not repeated.
Needs pyarrow, which the dev extras install, and tokenizers, which torchtitan brings.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from corpus import make_corpus
from runs import (
    branch_of,
    drop_checkpoints,
    final_loss,
    parse_arguments,
    run_folder,
    seeded,
    side_by_side,
    spread,
    train,
    validations,
)

CONFIG = Path(__file__).with_name("study.toml")
ORDINARY = "ordinary"


@dataclass(frozen=True)
class Arm:
    """One way to freeze."""

    name: str
    freeze: float
    """Share of training before the freeze."""
    saf: dict[str, Any]
    """Settings of [saf]."""


def read_arms() -> list[Arm]:
    tables = tomllib.loads(Path(__file__).with_name("arms.toml").read_text())["arm"]
    return [Arm(table.pop("name"), table.pop("freeze"), table) for table in tables]


@dataclass(frozen=True)
class Length:
    """Of a run: its steps, and how often a parent for other arms is kept."""

    steps: int
    interval: int

    def freeze_step(self, share: float) -> int:
        return min(round(share * self.steps), self.steps - 1)

    def parent_step(self, share: float) -> int:
        """The last checkpoint that an arm which freezes then can start from."""
        return self.freeze_step(share) // self.interval * self.interval


def base_length(config: Path = CONFIG) -> Length:
    base = tomllib.loads(config.read_text())
    return Length(base["training"]["steps"], base["checkpoint"]["interval"])


def run_ordinary(out: Path, shards: Path, seed: int) -> None:
    folder = run_folder(out, ORDINARY, seed)
    if final_loss(folder) is None:
        train(CONFIG, folder, seeded(shards, seed) | {"saf.enable": False})


def run_arm(out: Path, shards: Path, arm: Arm, seed: int) -> None:
    folder, length = run_folder(out, arm.name, seed), base_length()
    if final_loss(folder) is None:
        print(f"{arm.name}, seed {seed}", flush=True)
        settings = branch_of(run_folder(out, ORDINARY, seed), length.parent_step(arm.freeze))
        settings |= {f"saf.{key}": value for key, value in arm.saf.items()}
        settings |= {"saf.enable": True, "saf.step": length.freeze_step(arm.freeze), "saf.seed": seed}
        train(CONFIG, folder, seeded(shards, seed) | settings)
    drop_checkpoints(folder)


def table(out: Path, arms: Sequence[Arm], seeds: Sequence[int]) -> str:
    """Differences to the ordinary run of the same seed, nats a token."""
    baseline = {seed: loss for seed in seeds if (loss := final_loss(run_folder(out, ORDINARY, seed))) is not None}
    lines = [
        f"Ordinary attention: final loss {', '.join(f'{loss:.4f}' for loss in baseline.values())}.",
        "",
        "| arm | seeds | jump at the freeze | final loss minus ordinary's | perplexity |",
        "|---|---|---|---|---|",
    ]
    for arm in arms:
        jumps, penalties = [], []
        for seed, ordinary in baseline.items():
            phases = validations(run_folder(out, arm.name, seed))
            if "final" in phases:
                penalties.append(phases["final"] - ordinary)
                jumps.append(phases["after_freeze"] - phases["before_freeze"])
        if penalties:
            perplexity = spread([100 * math.expm1(penalty) for penalty in penalties], "+.2f")
            lines.append(f"| {arm.name} | {len(penalties)} | {spread(jumps)} | {spread(penalties)} | {perplexity} % |")
    return "\n".join(lines)


def main() -> None:
    arms = {arm.name: arm for arm in read_arms()}
    args = parse_arguments(__doc__, arms)
    if not args.table:
        shards = make_corpus(args.text, args.out / "corpus")
        side_by_side([partial(run_ordinary, args.out, shards, seed) for seed in args.seeds], args.jobs)
        chosen = [(arms[name], seed) for name in args.arms for seed in args.seeds]
        side_by_side([partial(run_arm, args.out, shards, arm, seed) for arm, seed in chosen], args.jobs)
    print(table(args.out, [arms[name] for name in args.arms], args.seeds))


if __name__ == "__main__":
    main()
