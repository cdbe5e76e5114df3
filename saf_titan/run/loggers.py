"""Scalars and pictures of a freeze for TensorBoard and Weights & Biases."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchtitan.components.metrics import BaseLogger, LoggerContainer, TensorBoardLogger, WandBLogger

from saf_titan.report.rows import FreezeRow, FreezeUndoneRow
from saf_titan.run.freezer import FreezeResult


def log_freeze(logger: BaseLogger, row: FreezeRow | FreezeUndoneRow, result: FreezeResult) -> None:
    """Send scalars of a freeze, and pictures of the measured heads, to the loggers of a run.

    Scalars: `saf/frozen` (number of heads that this freeze made static; 0 if it was undone), `saf/fit_kl_mean` and
    `saf/fit_kl_max` (nats a row), `saf/seconds/<stage>`, and under a loss budget `saf/held_out_loss_change` (nats).
    The pictures, of `report.images`, are sent only if the freeze was accepted. Without such a logger nothing is
    computed.
    """
    loggers = logger._loggers if isinstance(logger, LoggerContainer) else [logger]
    shown = [one for one in loggers if isinstance(one, (TensorBoardLogger, WandBLogger))]
    if not shown:
        return
    kls = [head.fit_kl for head in result.plan.heads if head.step == row.step]
    scalars: dict[str, Any] = {"saf/frozen": len(kls) if result.accepted else 0}
    if kls:
        scalars |= {"saf/fit_kl_mean": sum(kls) / len(kls), "saf/fit_kl_max": max(kls)}
    scalars |= {f"saf/seconds/{stage}": seconds for stage, seconds in result.seconds.items()}
    if result.losses is not None:
        scalars["saf/held_out_loss_change"] = result.losses[1] - result.losses[0]
    logger.log(scalars, row.step)
    if result.accepted:
        # a plotting library is slow to import
        from saf_titan.report.heads import maps_of_freeze
        from saf_titan.report.images import freeze_images

        images = freeze_images(maps_of_freeze(result.calibration, result.plan, row.step))
        for one in shown:
            log_images(one, images, row.step)


def log_images(logger: TensorBoardLogger | WandBLogger, images: Mapping[str, NDArray[np.uint8]], step: int) -> None:
    """Send pictures (height, width, 3) to a logger, past torchtitan's interface, which takes only numbers."""
    if isinstance(logger, TensorBoardLogger):
        for name, image in images.items():
            logger.writer.add_image(f"saf/{name}", image, step, dataformats="HWC")
    else:
        wandb = logger.wandb
        wandb.log({f"saf/{name}": wandb.Image(image) for name, image in images.items()}, step=step)
