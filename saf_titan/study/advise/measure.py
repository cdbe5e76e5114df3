"""Measures what freezing would do to a checkpoint: step times, losses right after freezing, cost of the freeze."""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import dataclasses
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from saf_titan.config import RunConfig, load_config
from saf_titan.fields.step_folders import is_complete
from saf_titan.report.run_log import read_run
from saf_titan.report.summary import Quartiles
from saf_titan.run.calibration_data import CalibrationData, TokenBatch
from saf_titan.run.checkpoints import complete_checkpoints
from saf_titan.run.folder import CONFIG_FILE
from saf_titan.run.offline import open_checkpoint
from saf_titan.run.precision import compute_precision, uses_autocast
from saf_titan.run.resume import read_freeze
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.select.registry import SELECTORS
from saf_titan.study.advise.steps import Steps, speedups, spread

CEILING = 1.0
"""The rate at which all heads are static. No freeze makes a step faster than this one."""


@dataclass(frozen=True, kw_only=True)
class Rise:
    """What a freeze does to the loss before any further training."""

    heads: int
    """Number of heads that became static: fewer than the rate asks for if no pattern fits some heads."""
    nats: float
    """Change of the loss, nats per token."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements that the advice is based on."""

    checkpoint: str
    setting: str
    """Model, sequence length, batch, precision and device, as a phrase."""
    step: int
    steps_left: int
    """Updates that the run still has to do after the checkpoint."""
    micro_batches: int
    """Number of batches of the measured size in an update of the run, on one rank."""
    num_heads: int
    seconds: dict[float, Quartiles]
    """Rate of static heads -> seconds of a step with one batch; rate 0 and `CEILING` are included."""
    speedups: dict[float, Quartiles]
    """Rate of static heads -> how many times as fast a step is as one of rate 0, paired round by round."""
    attention_share: float
    """Share of a step, in [0, 1], that attention takes with all heads live; projections are not counted."""
    freeze_seconds: dict[str, float]
    """Stage of a freeze, "calibrate" or "fit" -> its seconds."""
    slope: float
    """Fall of the training loss at the checkpoint, nats per update; NaN if the run's log has too few steps."""
    loss: float
    """Loss with all heads live, on held-out sequences that calibration has not seen; nats per token."""
    rises: dict[str, dict[float, Rise]]
    """Selector -> rate -> change of the loss."""


def find_checkpoint(path: Path, config: Path | None = None) -> tuple[RunConfig, Path]:
    """Return the run of a checkpoint and its newest checkpoint whose heads are all live.

    Args:
        path: a checkpoint, or a run's folder.
        config: TOML file of the run; by default the one in the run's folder.

    Raises ValueError if there is no such checkpoint.
    """
    is_checkpoint = is_complete(path)
    file = config or (path.resolve().parent.parent if is_checkpoint else path) / CONFIG_FILE
    if not file.is_file():
        raise ValueError(f"{path} is neither a checkpoint nor a run's folder: {file} is missing; give it with --config")
    run = load_config(file)
    if run.model.fuse_qkv:
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, fuse_qkv=False))
    steps = {_step_of(path): path} if is_checkpoint else complete_checkpoints(path / run.checkpoint.folder)
    for step in sorted(steps, reverse=True):
        if read_freeze(steps[step]).plan is None:
            return run, steps[step]
    if steps:
        raise ValueError(f"{path}: heads are static already in every checkpoint; give one from before the freeze")
    raise ValueError(f"{path / run.checkpoint.folder} holds no complete checkpoint: train with checkpoint.enable")


def measure(
    run: RunConfig,
    checkpoint: Path,
    *,
    rates: Sequence[float],
    selectors: Collection[str],
    rounds: int,
    progress: Progress,
) -> Measured:
    """Measure a checkpoint on this machine, in one process, on the accelerator if there is one.

    Args:
        rates: shares of all heads, above 0 and below 1.
        selectors: names of selectors, without those that average gradients during training.
        rounds: number of steps that are timed for each rate, at least two.
        progress: called with (stage, done, total).

    Raises ValueError for a selector that averages gradients during training, and for too few held-out sequences.
    """
    if watching := [name for name in selectors if SELECTORS[name].watches_gradients]:
        raise ValueError(f"the selector {watching[0]} averages gradients over the steps of training: leave it out")
    n = run.saf.calibration_sequences
    # one half is for calibration, the other half for the loss
    run = dataclasses.replace(run, saf=dataclasses.replace(run.saf, calibration_sequences=2 * n))
    opened = open_checkpoint(run, checkpoint)
    seen, unseen = _halves(opened.data, n, run.calibration_batch_size)
    measurement, model, device = opened.measurement, opened.model, opened.device
    attentions = measurement.attentions
    start = time.perf_counter()
    calibration = measurement.calibrate(seen, selectors, None, progress)
    calibrated = time.perf_counter() - start

    def plan(rate: float, selector: str, max_fit_kl: float = run.saf.max_fit_kl) -> StaticPlan:
        settings = dataclasses.replace(
            run.saf, rate=rate, selector=selector, content="mean", heads=(), max_fit_kl=max_fit_kl, on_shortfall="warn"
        )
        return make_plan(calibration, settings, step=_step_of(checkpoint))

    loss = measurement.held_out_loss(unseen)
    rises: dict[str, dict[float, Rise]] = {}
    plans: dict[float, StaticPlan | None] = {0.0: None}
    fitted = 0.0
    for number, selector in enumerate(selectors):
        rises[selector] = {}
        for rate in rates:
            start = time.perf_counter()
            chosen = plan(rate, selector)
            fitted = max(fitted, time.perf_counter() - start)
            install(attentions, chosen)
            change = measurement.held_out_loss(unseen) - loss
            rises[selector][rate] = Rise(heads=len(chosen.heads), nats=change)
            plans.setdefault(rate, chosen)
        progress("loss right after freezing", number + 1, len(selectors))
    # no head is skipped here: a badly fitted pattern takes as long as any other
    plans[CEILING] = plan(CEILING, next(iter(selectors)), max_fit_kl=1e9)
    install(attentions, None)

    batches = ((x["input"], y) for x, y in opened.data.batches)
    tokens_BT, labels_BT = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    size = min(run.training.local_batch_size, len(tokens_BT))
    model.train()
    steps = Steps(model, attentions, tokens_BT[:size].to(device), labels_BT[:size].to(device))
    seconds = steps.time(plans, rounds)
    step = _step_of(checkpoint)
    return Measured(
        checkpoint=str(checkpoint),
        setting=(
            f"{run.model.family} {run.model.flavor}, {size} x {run.training.seq_len:,} tokens a batch, "
            f"{'bfloat16 by autocast' if uses_autocast(run) else compute_precision(run)} on {device.type}"
        ),
        step=step,
        steps_left=max(0, run.training.steps - step),
        micro_batches=max(1, run.training.global_batch_size // size),
        num_heads=calibration.live_LH.numel(),
        seconds={rate: spread(values) for rate, values in seconds.items()},
        speedups=speedups(seconds),
        attention_share=steps.attention_share(),
        freeze_seconds={"calibrate": calibrated, "fit": fitted},
        slope=_slope(checkpoint),
        loss=loss,
        rises=rises,
    )


def _halves(
    data: CalibrationData[TokenBatch], n: int, batch_size: int
) -> tuple[CalibrationData[TokenBatch], list[TokenBatch]]:
    """Return the first n sequences, for calibration, and all others, both in batches of `batch_size`."""
    inputs_NT = torch.cat([batch[0]["input"] for batch in data.batches])
    labels_NT = torch.cat([batch[1] for batch in data.batches])

    def batches(first: int, last: int) -> list[TokenBatch]:
        parts = zip(inputs_NT[first:last].split(batch_size), labels_NT[first:last].split(batch_size), strict=True)
        return [({"input": x_BT}, y_BT) for x_BT, y_BT in parts]

    return dataclasses.replace(data, batches=batches(0, n), positions=data.positions[:n]), batches(n, len(inputs_NT))


def _slope(checkpoint: Path) -> float:
    """Return the fall of the training loss in nats per update, by a line through the last quarter of the logged steps.

    NaN if fewer than four steps of this quarter were logged.
    """
    step = _step_of(checkpoint)
    try:
        log = read_run(checkpoint.resolve().parent.parent)
    except ValueError:
        return math.nan
    rows = [row for row in log.train if 0.75 * step <= row.step <= step and math.isfinite(row.loss)]
    if len(rows) < 4:
        return math.nan
    return -float(np.polyfit([row.step for row in rows], [row.loss for row in rows], 1)[0])


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.resolve().name.removeprefix("step-"))
