"""Measure the cost of circuit-wise learning rates and of the circuits' metrics, on the 124m decoder and a CPU.

    OMP_NUM_THREADS=1 python scripts/bench/circuits.py [--rounds 8] [--seq-len 256]

A step is the forward, backward, optimizer and schedule of one sequence. Steps with and without a group schedule take
turns on the same model, each with its own optimizer and moments. Their forward and backward are the same code, so the
optimizer and the schedule are also timed alone. Times are medians of the processor time of one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from saf_titan import compat  # noqa: F401  # isort: skip

import torch
from timing import machine_line
from torch import Tensor
from torch.nn import functional as F

from saf_titan.circuits.optimizer import CircuitOptimizers, CircuitSchedules
from saf_titan.config import SHAPES, load_config
from saf_titan.config.circuit_groups import CircuitGroup
from saf_titan.config.own_sections import ModelSection
from saf_titan.models import model_spec
from saf_titan.run.calibration_data import CalibrationData
from saf_titan.run.circuit_metrics import CircuitMetrics
from saf_titan.run.measurement import Measurement, logged_progress

RULE = CircuitGroup(match="qk", layers=(6, 11), factor=0.25, schedule="hold_then_ramp", hold_steps=2, ramp_steps=1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    args = parser.parse_args()
    print(machine_line(torch.device("cpu")))
    model = model_spec(ModelSection(), SHAPES["gpt"]["124m"], max_seq_len=args.seq_len).model.build()
    model.init_states()
    torch.manual_seed(0)
    tokens_BT = torch.randint(50_000, (2, args.seq_len))

    arms = {"without": build(model, ()), "with": build(model, (RULE,))}
    parts: dict[str, dict[str, list[float]]] = {name: {"step": [], "update": []} for name in arms}
    for round_ in range(args.rounds + 1):
        for name in list(arms) if round_ % 2 else list(arms)[::-1]:
            optimizers, schedules = arms[name]
            start = time.process_time()
            logits_BTV = model(tokens_BT[:1])
            F.cross_entropy(logits_BTV[0, :-1], tokens_BT[0, 1:]).backward()
            update = timed(lambda optimizers=optimizers, schedules=schedules: (optimizers.step(), schedules.step()))
            optimizers.zero_grad()
            # the first round is not counted, because it allocates the moments
            if round_:
                parts[name]["step"].append(time.process_time() - start)
                parts[name]["update"].append(update)
    print(f"a step of one sequence of {args.seq_len} tokens, medians of {args.rounds}:")
    for part in ("step", "update"):
        without, with_ = (statistics.median(parts[name][part]) for name in ("without", "with"))
        ratios = [b / a for a, b in zip(parts["without"][part], parts["with"][part], strict=True)]
        print(
            f"  {part:<6} {without:8.4f} s without, {with_:8.4f} s with; with / without {statistics.median(ratios):.4f}"
        )
    step, update = (statistics.median(parts["without"][part]) for part in ("step", "update"))
    added = statistics.median(b - a for a, b in zip(parts["without"]["update"], parts["with"]["update"], strict=True))
    print(f"  change of the update as a share of the step: {added / step:+.3%}")
    schedule = {name: min(timed(schedules.step) for _ in range(50)) for name, (_, schedules) in arms.items()}
    added = schedule["with"] - schedule["without"]
    print(
        f"  schedule alone: {schedule['without'] * 1e6:.0f} us without, {schedule['with'] * 1e6:.0f} us with: "
        f"{added / step:+.4%} of the step"
    )
    cost_of_metrics(model, tokens_BT, step)


def cost_of_metrics(model: torch.nn.Module, tokens_BT: Tensor, step: float) -> None:
    """Print the processor time of one measurement, and its share at the default frequency."""
    run = load_config(None)

    def losses(batch_BT: Tensor) -> Tensor:
        raise AssertionError

    measurement = Measurement(model, run.saf, forward=model, sequence_losses=losses, group=None)
    data = CalibrationData([tokens_BT], (), 0, "")
    attention = measurement.calibrate
    for what, measure in (
        ("updates alone", None),
        ("with attention", lambda: attention(data, (), None, logged_progress())),
    ):
        metrics = CircuitMetrics(model, 1, measure)
        seconds = statistics.median(
            timed(lambda metrics=metrics: (metrics.remember(), metrics.row(1))) for _ in range(5)
        )
        share = seconds / step / run.circuits.metrics_freq
        print(
            f"metrics, {what}: {seconds:.3f} s; every {run.circuits.metrics_freq} steps {share:.3%} of steps of one "
            f"sequence, {share / 8:.3%} of steps of 8"
        )


def build(model: torch.nn.Module, rules: tuple[CircuitGroup, ...]) -> tuple[CircuitOptimizers, CircuitSchedules]:
    """Return a new optimizer over the whole model, and its schedule."""
    optimizers = CircuitOptimizers.Config(
        name="AdamW",
        hyper_parameters={"lr": 6e-4, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},
        rules=rules,
        implementation="fused",
    ).build(model_parts=[model])
    schedules = CircuitSchedules.Config(warmup_steps=100).build(optimizers=optimizers, training_steps=10_000)
    return optimizers, schedules


def timed(run: Callable[[], object]) -> float:
    """Return the processor seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
