"""Log lines of a run: its data, its precision and its calibration at the start, and the outcome of each freeze."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from pathlib import Path

import torch.distributed as dist
from torchtitan.tools.logging import logger

from saf_titan.config import RunConfig
from saf_titan.data.checks import inspect_data
from saf_titan.report.rows import FreezeRow, FreezeUndoneRow
from saf_titan.run.calibration_data import rounding_line
from saf_titan.run.freezer import FreezeResult
from saf_titan.run.precision import precision_line


def opening_lines(run: RunConfig, world_size: int, batch_ranks: int) -> list[str]:
    """Return lines about the data, the precision and the calibration of a run on ``world_size`` ranks.

    batch_ranks: number of ranks that read different data.
    """
    lines, _ = inspect_data(run, world_size, digests=False)
    rounding = rounding_line(run, batch_ranks) if run.saf.enable else None
    return [*lines, precision_line(run), *filter(None, [rounding, keep_line(run)])]


def keep_line(run: RunConfig) -> str | None:
    """Return a line about the steps of `keep_steps` that `interval` alone would not save; None if there are none."""
    checkpoint = run.checkpoint
    extra = sorted({step for step in checkpoint.keep_steps if step % checkpoint.interval and step < run.training.steps})
    if not extra:
        return None
    steps = f"{'step' if len(extra) == 1 else 'steps'} {', '.join(map(str, extra))}"
    return (
        f"checkpoint.keep_steps: {steps} {'is' if len(extra) == 1 else 'are'} saved too, although not a multiple of "
        f"checkpoint.interval = {checkpoint.interval}"
    )


def record_freeze(result: FreezeResult, static_heads: str, folder: Path) -> FreezeRow | FreezeUndoneRow:
    """Log the outcome of a freeze, write its plan and its statistics to files, and return its row of metrics.

    Args:
        static_heads: the static heads by layer, for the log.
        folder: the folder of the run; the first rank writes the files to ``saf/step-N`` in it.
    """
    plan, seconds = result.plan, result.seconds
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    outcome = "Froze" if result.accepted else "Undid a freeze that cost too much loss:"
    logger.info(f"{outcome} {len(plan.heads)} heads in {sum(seconds.values()):.1f} s ({stages})")
    logger.info(f"Static heads: {static_heads or 'none'}")
    for head in plan.skipped:
        logger.info(f"Skipped {head.name}: {head.reason}")
    place = f"saf/step-{plan.step:06d}"
    if dist.get_rank() == 0 and result.accepted:
        target = folder / place
        target.mkdir(parents=True, exist_ok=True)
        plan.save(target / "plan.safetensors")
        result.calibration.save(target / "stats.safetensors")
    row_type = FreezeRow if result.accepted else FreezeUndoneRow
    return row_type(
        step=plan.step,
        heads=len(plan.heads),
        new_heads=sum(head.step == plan.step for head in plan.heads),
        folder=place if result.accepted else "",
        digest=plan.digest,
        seconds=seconds,
        held_out_losses=result.losses,
    )
