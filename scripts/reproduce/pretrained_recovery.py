"""Train a pretrained model for a few steps after its heads were frozen: how much of the loss comes back?

    python scripts/reproduce/pretrained_recovery.py MODEL --stats STATS --calibration TEXT --train TEXT \
        --text books=FILE --text wiki=FILE --out DIR

STATS is a file from `python -m saf_titan.hf calibrate --selector output_error`. Every arm starts with the weights of
MODEL, and trains on the same windows of the training text in the same order; the arm "ordinary" without static heads
tells what the training alone gives. Each loss is written to DIR/losses.jsonl as it is measured, and an arm that is
there is not repeated. At the end a table in Markdown is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pretrained import held_out_windows
from torch import Tensor

import saf_titan.hf
from saf_titan.hf.measure import compensate, sequence_losses, text_loss, write_weights
from saf_titan.hf.text import text_windows
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings


@dataclass(frozen=True)
class Arm:
    """The static heads that a model is trained with; no selector for ordinary attention."""

    name: str
    selector: str = ""
    compensated: bool = False


ARMS = (
    Arm("ordinary"),
    Arm("output error", "output_error"),
    Arm("output error, compensated", "output_error", compensated=True),
    Arm("variance", "variance"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--stats", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True, help="the text from which weights are compensated")
    parser.add_argument("--train", type=Path, required=True, help="the text to train on")
    parser.add_argument("--text", action="append", required=True, metavar="NAME=FILE", help="held-out texts")
    parser.add_argument("--sequences", type=int, default=4, help="windows of each held-out text")
    parser.add_argument("--rate", type=float, default=0.2, help="share of the heads that become static")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2, help="windows of a step")
    parser.add_argument("--lr", type=float, default=1e-5, help="learning rate, reached in a quarter of the steps")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    calibration = Calibration.load(args.stats)
    T = calibration.seq_len
    windows = text_windows(args.train, args.model, args.steps * args.batch, T).tokens_NT
    # neighbouring windows are of one document; a step has distant ones
    batches = windows.view(args.batch, args.steps, T).transpose(0, 1)
    texts = held_out_windows(args.text, args.model, args.sequences, T)
    solved_on = text_windows(args.calibration, args.model, calibration.record.num_sequences, T).tokens_NT

    store = args.out / "losses.jsonl"
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    for arm in ARMS:
        if any(row["arm"] == arm.name for row in rows):
            continue
        start = time.perf_counter()
        model = saf_titan.hf.load(args.model, dtype=torch.float32).eval()
        if arm.selector:
            settings = PlanSettings(rate=args.rate, selector=arm.selector, on_shortfall="warn")
            plan = make_plan(calibration, settings)
            if arm.compensated:
                write_weights(model, compensate(model, solved_on, plan))
            model.set_plan(plan)
        before = {name: text_loss(model, tokens_NT).nll for name, tokens_NT in texts.items()}
        training = list(_train(model, batches, args.lr))
        after = {name: text_loss(model, tokens_NT).nll for name, tokens_NT in texts.items()}
        rows.append({"arm": arm.name, "before": before, "after": after, "training": training})
        with store.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(f"{arm.name}: {time.perf_counter() - start:.0f} s", flush=True)
    print("\n".join(_table({row["arm"]: row for row in rows}, list(texts))))


def _train(model: Any, batches: Tensor, lr: float) -> Iterator[float]:
    """Train on batches (steps, B, T) with AdamW, without weight decay, and yield the loss of each step, in nats.

    The rate rises linearly over the first quarter of the steps and then stays, gradients are clipped to a norm of 1.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    warmup = max(1, len(batches) // 4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    for batch_BT in batches:
        total = 0.0
        # one window at a time: the logits of a window over a large vocabulary take most of the memory
        for window_T in batch_BT:
            loss = sequence_losses(model, window_T.unsqueeze(0)).sum() / len(batch_BT)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(f"  loss {total:.4f}", flush=True)
        yield total


def _table(rows: dict[str, dict[str, Any]], texts: list[str]) -> Iterator[str]:
    """Yield the lines of a table: the change of perplexity in percent from the ordinary model, before and after."""
    for when in ("before", "after"):
        losses = rows["ordinary"][when]
        yield f"ordinary attention {when}: " + ", ".join(
            f"{name} {losses[name]:.4f} nat (perplexity {math.exp(losses[name]):.2f})" for name in texts
        )
    yield "| change of perplexity, % | " + " | ".join(f"{text} before | {text} after" for text in texts) + " |"
    yield "| --- |" + " ---: |" * (2 * len(texts))
    for name, row in rows.items():
        # against the same training of the model without static heads
        changes = [
            100 * math.expm1(row[when][text] - rows["ordinary"][when][text])
            for text in texts
            for when in ("before", "after")
        ]
        yield f"| {name} | " + " | ".join(f"{change:+.1f}" for change in changes) + " |"


if __name__ == "__main__":
    main()
