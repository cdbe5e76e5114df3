"""Freeze heads of a pretrained model without any training, with several selectors and contents, at several rates.

    python scripts/reproduce/pretrained.py MODEL --stats STATS --replacement LOSSES --calibration TEXT \
        --text books=FILE --text wiki=FILE --out DIR

STATS is a file from `python -m saf_titan.hf calibrate --selector kl,output_error`, LOSSES one from `... replacement`.
Each loss is written to DIR/losses.jsonl as it is measured, so that an interrupted study can go on. At the end a table
in Markdown is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import saf_titan.hf
from saf_titan.heads.names import head_name, parse_heads
from saf_titan.hf.measure import compensate, text_loss, write_weights
from saf_titan.hf.text import text_windows
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings

RATES = (0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Arm:
    """One way to choose heads and to replace them."""

    name: str
    selector: str
    content: str = "mean"
    compensated: bool = False
    seed: int = 0


ARMS = (
    Arm("variance", "variance"),
    Arm("KL", "kl"),
    Arm("output error", "output_error"),
    Arm("single-head replacement", "replacement"),
    Arm("random, seed 0", "random", seed=0),
    Arm("random, seed 1", "random", seed=1),
    Arm("random, seed 2", "random", seed=2),
    Arm("variance, compensated", "variance", compensated=True),
    Arm("output error, compensated", "output_error", compensated=True),
    Arm("variance, uniform", "variance", content="uniform"),
    Arm("variance, pruned", "variance", content="prune"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--stats", type=Path, required=True)
    parser.add_argument("--replacement", type=Path, help="without it, the arm single-head replacement is left out")
    parser.add_argument("--calibration", type=Path, required=True, help="the text from which weights are compensated")
    parser.add_argument("--text", action="append", required=True, metavar="NAME=FILE", help="held-out texts")
    parser.add_argument("--sequences", type=int, default=8, help="windows of each held-out text")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calibration = Calibration.load(args.stats)
    T = calibration.seq_len
    model = saf_titan.hf.load(args.model, dtype=torch.float32).eval()
    texts = held_out_windows(args.text, args.model, args.sequences, T)
    solved_on = text_windows(args.calibration, args.model, calibration.record.num_sequences, T).tokens_NT

    store = args.out / "losses.jsonl"
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    known = {(row["arm"], row["rate"], row["text"]): row["loss"] for row in rows}
    arms = [arm for arm in ARMS if args.replacement is not None or arm.selector != "replacement"]
    for arm, rate, plan in _plans(calibration, arms, args.replacement, args.rates):
        missing = [name for name in texts if (arm.name, rate, name) not in known]
        if not missing:
            continue
        start = time.perf_counter()
        before = {name: weight.clone() for name, weight in model.state_dict().items() if "_proj" in name}
        if arm.compensated and plan is not None:
            write_weights(model, compensate(model, solved_on, plan))
        model.set_plan(plan)
        for name in missing:
            known[arm.name, rate, name] = loss = text_loss(model, texts[name]).nll
            heads = [head_name(*head.slot) for head in plan.heads] if plan is not None else []
            row = {"arm": arm.name, "rate": rate, "text": name, "loss": loss, "heads": heads}
            with store.open("a") as file:
                file.write(json.dumps(row) + "\n")
        model.set_plan(None)
        if arm.compensated:
            model.load_state_dict(before, strict=False)
        print(f"{arm.name}, {rate:.0%}: {time.perf_counter() - start:.0f} s", flush=True)
    print("\n".join(_table(known, arms, list(texts), args.rates)))


def held_out_windows(texts: list[str], model: str, number: int, length: int) -> dict[str, Tensor]:
    """Return, for each "NAME=FILE", that many windows of the file, int64 (N, T), by name."""
    pairs = (text.partition("=") for text in texts)
    return {name: text_windows(Path(file), model, number, length).tokens_NT for name, _, file in pairs}


def _plans(
    calibration: Calibration, arms: list[Arm], replacement: Path | None, rates: tuple[float, ...]
) -> Iterator[tuple[Arm, float, StaticPlan | None]]:
    """Yield (arm, rate, plan): first ordinary attention, without a plan, then every arm at every rate."""
    yield Arm("ordinary", "none"), 0.0, None
    losses = [json.loads(line) for line in replacement.read_text().splitlines()][1:] if replacement else []
    scores_LH = torch.full(calibration.live_LH.shape, math.nan, dtype=torch.float64)
    for row in losses:
        scores_LH[parse_heads(row["head"])[0]] = row["loss"]
    total = calibration.live_LH.numel()
    for rate in rates:
        for arm in arms:
            settings = PlanSettings(
                rate=rate, selector=arm.selector if arm.selector != "replacement" else "list", content=arm.content
            )
            changes: dict[str, Any] = {"seed": arm.seed, "on_shortfall": "warn"}
            if arm.selector == "replacement":
                order = scores_LH.flatten().argsort()[: round(rate * total)].tolist()
                names = tuple(head_name(*divmod(slot, calibration.num_heads)) for slot in order)
                changes |= {"heads": names, "max_fit_kl": 1e9}
            yield arm, rate, make_plan(calibration, replace(settings, **changes))


def _table(
    known: dict[tuple[str, float, str], float], arms: list[Arm], texts: list[str], rates: tuple[float, ...]
) -> Iterator[str]:
    """Yield the lines of a table of the change of perplexity, in percent, with a row for each arm."""
    ordinary = {name: known["ordinary", 0.0, name] for name in texts}
    yield "ordinary attention: " + ", ".join(
        f"{name} {loss:.4f} nat (perplexity {math.exp(loss):.2f})" for name, loss in ordinary.items()
    )
    yield "| change of perplexity, % | " + " | ".join(f"{name} {rate:.0%}" for name in texts for rate in rates) + " |"
    yield "| --- |" + " ---: |" * (len(texts) * len(rates))
    for arm in arms:
        changes = [100 * math.expm1(known[arm.name, rate, name] - ordinary[name]) for name in texts for rate in rates]
        yield f"| {arm.name} | " + " | ".join(f"{change:+.1f}" for change in changes) + " |"


if __name__ == "__main__":
    main()
