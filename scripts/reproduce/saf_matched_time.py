"""What freezing is worth: held-out loss after the same time as ordinary attention, over seeds.

    python scripts/reproduce/saf_matched_time.py --text TEXT.parquet --out outputs/saf_matched_time
    python scripts/reproduce/saf_matched_time.py --text TEXT.parquet --out outputs/saf_matched_time --table

Per seed an ordinary run is trained half-way (matched_time.toml). From there ordinary attention goes on to the last
step, and each rate goes on for as many seconds as that took, calibration, fit and checkpoints included. No run looks
at held-out data on the clock; each end is evaluated afterwards. A timed run that was interrupted begins again. With
two jobs a run of the same kind goes on beside every timed one; nothing else should.
Needs pyarrow, which the dev extras install, and tokenizers, which torchtitan brings.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from corpus import make_corpus
from runs import branch_of, final_loss, parse_arguments, rows, run_folder, seeded, side_by_side, spread, train

CONFIG = Path(__file__).with_name("matched_time.toml")
PARENT, ORDINARY = "parent", "ordinary"
ARMS: dict[str, dict[str, Any]] = {
    "by variance, 25 %": {"saf.rate": 0.25},
    "by variance, 50 %": {"saf.rate": 0.5},
    "by output error, 25 %": {"saf.rate": 0.25, "saf.selector": "output_error"},
    "by output error, 50 %": {"saf.rate": 0.5, "saf.selector": "output_error"},
}


def steps_of_study() -> tuple[int, int]:
    """The step of the freeze and the last planned one."""
    base = tomllib.loads(CONFIG.read_text())
    return base["saf"]["step"], base["training"]["steps"]


def train_parent(out: Path, shards: Path, seed: int) -> None:
    folder = run_folder(out, PARENT, seed)
    freeze_step, last_step = steps_of_study()
    if not rows(folder, "finish"):
        # the schedule is that of the whole run
        stop = {"training.steps": freeze_step, "lr_scheduler.total_steps": last_step}
        train(CONFIG, folder, seeded(shards, seed) | stop | {"saf.enable": False, "validator.enable": False})


def continue_timed(out: Path, shards: Path, arm: str, seed: int) -> None:
    """An arm from the parent to the end of its steps, or of the ordinary arm's seconds; then its held-out loss."""
    folder = run_folder(out, arm, seed)
    if final_loss(folder) is not None:
        return
    settings = seeded(shards, seed) | {"validator.enable": False}
    settings |= branch_of(run_folder(out, PARENT, seed), steps_of_study()[0])
    if arm == ORDINARY:
        settings["saf.enable"] = False
    else:
        settings |= {
            "saf.enable": True,
            "saf.matched_seconds": seconds_of(run_folder(out, ORDINARY, seed)),
            **ARMS[arm],
        }
    if not rows(folder, "finish"):
        print(f"{arm}, seed {seed}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        train(CONFIG, folder, settings)
    evaluate(folder, settings)


def evaluate(folder: Path, settings: dict[str, Any]) -> None:
    """Resume a finished run with nothing left to do but to look at held-out data."""
    steps = rows(folder, "finish")[-1]["step"]
    settings = settings | {"validator.enable": True, "training.steps": steps, "lr_scheduler.total_steps": 0}
    train(CONFIG, folder, settings | {"saf.matched_seconds": 0})


def seconds_of(folder: Path) -> float:
    """Of the run's own training; evaluations come after it."""
    return rows(folder, "finish")[0]["seconds"]


def steps_taken(folder: Path) -> int:
    return rows(folder, "finish")[0]["step"] - steps_of_study()[0]


def table(out: Path, seeds: Sequence[int]) -> str:
    """Steps and losses relative to the ordinary run of the same seed, nats a token."""
    baseline = {seed: loss for seed in seeds if (loss := final_loss(run_folder(out, ORDINARY, seed))) is not None}
    lines = [
        f"Ordinary attention: final loss {', '.join(f'{loss:.4f}' for loss in baseline.values())} after "
        f"{', '.join(f'{seconds_of(run_folder(out, ORDINARY, seed)):.0f}' for seed in baseline)} s.",
        "",
        "| arm | seeds | seconds / ordinary's | updates / ordinary's | final loss minus ordinary's | perplexity |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        times, updates, gains = [], [], []
        for seed, ordinary_loss in baseline.items():
            folder, ordinary = run_folder(out, arm, seed), run_folder(out, ORDINARY, seed)
            loss = final_loss(folder)
            if loss is not None:
                times.append(seconds_of(folder) / seconds_of(ordinary))
                updates.append(steps_taken(folder) / steps_taken(ordinary))
                gains.append(loss - ordinary_loss)
        if gains:
            perplexity = spread([100 * math.expm1(gain) for gain in gains], "+.2f")
            lines.append(
                f"| {arm} | {len(gains)} | {statistics.mean(times):.3f} | {spread(updates, '.3f')} | {spread(gains)} | "
                f"{perplexity} % |"
            )
    return "\n".join(lines)


def main() -> None:
    args = parse_arguments(__doc__, ARMS)
    if not args.table:
        shards = make_corpus(args.text, args.out / "corpus")
        side_by_side([partial(train_parent, args.out, shards, seed) for seed in args.seeds], args.jobs)
        for arms in ((ORDINARY,), args.arms):
            chosen = [(arm, seed) for arm in arms for seed in args.seeds]
            side_by_side([partial(continue_timed, args.out, shards, arm, seed) for arm, seed in chosen], args.jobs)
    print(table(args.out, args.seeds))


if __name__ == "__main__":
    main()
