"""Measures on a checkpoint, with its data and on this machine, what freezing would save and cost.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import math
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn import functional as F

from saf_titan.config import RunConfig
from saf_titan.generate.checkpoint import find_source
from saf_titan.report.run_log import read_run
from saf_titan.run.offline import OpenCheckpoint, open_checkpoint
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.study.advice import Advice, RateMeasurement
from saf_titan.study.statistics import Spread

RATES = (0.1, 0.25, 0.5)
SELECTORS = ("variance", "output_error")


def advise(
    path: Path,
    *,
    rates: Sequence[float] = RATES,
    selectors: Sequence[str] = SELECTORS,
    rounds: int = 9,
    say: Callable[[str], None] = print,
) -> Advice:
    """Measure a checkpoint, or the newest one of a run's folder.

    A step is forward and backward of one rank's microbatches and the optimizer's update, in eager mode;
    alternatives are timed in turns. Losses are those of the calibration sequences.

    Raises:
        ValueError: there is no complete checkpoint, its data are missing, or it has static heads already.
    """
    source = find_source(path)
    run, checkpoint = source.run, source.checkpoint
    opened = open_checkpoint(run, checkpoint, selectors)
    if opened.saved.plan is not None:
        raise ValueError(f"{checkpoint} has static heads already; give a checkpoint from before the freeze")
    start = time.perf_counter()
    calibration = opened.measurement.calibrate(opened.data, selectors, None, lambda *_: None)
    calibrate_seconds = time.perf_counter() - start
    say(f"calibrated in {calibrate_seconds:.1f} s")
    loss = opened.measurement.held_out_loss(opened.data.batches)
    plans: dict[str, StaticPlan | None] = {"live": None}
    jumps: dict[float, dict[str, float]] = {}
    seconds: dict[float, float] = {}
    for rate in rates:
        jumps[rate] = {}
        for selector in selectors:
            start = time.perf_counter()
            chosen = _plan(calibration, run, rate, selector)
            seconds[rate] = calibrate_seconds + time.perf_counter() - start
            _install(opened, chosen)
            jumps[rate][selector] = opened.measurement.held_out_loss(opened.data.batches) - loss
            plans.setdefault(f"static {rate}", chosen)
        plans[f"removed {rate}"] = _plan(calibration, run, rate, selectors[0], content="prune")
    plans["removed 1"] = _plan(calibration, run, 1.0, selectors[0], content="prune")
    times = _step_times(opened, run, plans, rounds)
    live = times["live"]

    def ratios(name: str) -> list[float]:
        return [before / after for before, after in zip(live, times[name], strict=True)]

    return Advice(
        where=f"{checkpoint} on {opened.device.type} ({platform.machine()}, {torch.get_num_threads()} threads), torch "
        f"{torch.__version__}, sequences of {run.training.seq_len:,} tokens",
        loss=loss,
        step_seconds=median(live),
        attention_share=1 - 1 / median(ratios("removed 1")),
        steps_left=max(0, run.schedule_steps - _step_of(checkpoint)),
        slope=_slope(checkpoint, _step_of(checkpoint)),
        rates=tuple(
            RateMeasurement(
                rate=rate,
                heads=len(plan.heads),
                speedup=Spread(tuple(ratios(f"static {rate}"))),
                ceiling=median(ratios(f"removed {rate}")),
                jumps=jumps[rate],
                freeze_seconds=seconds[rate],
            )
            for rate in rates
            if (plan := plans[f"static {rate}"]) is not None
        ),
    )


def _plan(calibration: Calibration, run: RunConfig, rate: float, selector: str, content: str = "mean") -> StaticPlan:
    settings = replace(run.saf, rate=rate, selector=selector, content=content, heads=(), on_shortfall="warn")
    if rate == 1:
        # all attention, to see what share of a step it is
        settings = replace(settings, max_per_layer=0, exclude_layers=())
    return make_plan(calibration, settings)


def _install(opened: OpenCheckpoint, plan: StaticPlan | None) -> None:
    """Make exactly the heads of a plan static, whatever the content of those before."""
    install(opened.measurement.attentions, None)
    install(opened.measurement.attentions, plan)


def _step_times(
    opened: OpenCheckpoint, run: RunConfig, plans: dict[str, StaticPlan | None], rounds: int
) -> dict[str, list[float]]:
    """Seconds of an optimizer step under each plan, one value a round; every second round in reverse order."""
    model, device, training = opened.model, opened.device, run.training
    vocabulary = run.shape.vocab_size
    tokens_BT = torch.randint(vocabulary, (training.local_batch_size, training.seq_len + 1), device=device)
    # a learning rate of 0 leaves the weights as they are, at the same cost
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=device.type == "cuda")
    sequences = max(training.global_batch_size, training.local_batch_size)
    num_microbatches = max(1, sequences // training.local_batch_size)

    def microbatch() -> None:
        logits_BTV = model(tokens_BT[:, :-1])
        F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten()).backward()

    def timed(work: Callable[[], object]) -> float:
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        return time.perf_counter() - start

    times: dict[str, list[float]] = {name: [] for name in plans}
    # the first round warms up: kernels are compiled and patterns prepared in it
    for number in range(rounds + 1):
        for name in list(plans) if number % 2 else list(plans)[::-1]:
            _install(opened, plans[name])
            seconds = timed(microbatch) * num_microbatches
            seconds += timed(optimizer.step)
            optimizer.zero_grad()
            if number:
                times[name].append(seconds)
    return times


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _step_of(checkpoint: Path) -> int:
    match = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(match[1]) if match else 0


def _slope(checkpoint: Path, step: int) -> float:
    """Fall of the training loss in nats a step, by a line through the last quarter of the log up to the checkpoint."""
    try:
        log = read_run(checkpoint.resolve().parent.parent)
    except ValueError:
        return math.nan
    rows = [row for row in log.train if 0.75 * step <= row.step <= step and math.isfinite(row.loss)]
    if len(rows) < 4:
        return math.nan
    return -float(np.polyfit([row.step for row in rows], [row.loss for row in rows], 1)[0])
