"""TensorBoard and Weights & Biases get the numbers and the pictures of a freeze."""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torchtitan.components.metrics import BaseLogger, LoggerContainer, TensorBoardLogger, WandBLogger

from saf_titan.report.rows import FreezeRow
from saf_titan.run.freezer import FreezeResult
from saf_titan.run.loggers import log_freeze, log_images
from tests.report.runs import calibration
from tests.saf.plans import plan_of


def result(*, accepted: bool = True) -> FreezeResult:
    statistics = calibration()
    plan = plan_of(statistics, step=60, rate=0.5, max_fit_kl=0.2, on_shortfall="warn")
    return FreezeResult(plan, statistics, accepted=accepted, losses=(3.0, 3.25), seconds={"fit": 0.5})


@pytest.mark.parametrize("accepted", [True, False])
def test_tensorboard(tmp_path: Path, accepted: bool) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    container = LoggerContainer()
    logger = TensorBoardLogger(str(tmp_path))
    container.add_logger(logger)
    freeze = result(accepted=accepted)
    log_freeze(container, FreezeRow(step=60, heads=4, folder=""), freeze)
    container.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()
    kls = [head.fit_kl for head in freeze.plan.heads]
    expected = {
        "saf/frozen": 4.0 if accepted else 0.0,
        "saf/fit_kl_mean": sum(kls) / 4,
        "saf/fit_kl_max": max(kls),
        "saf/seconds/fit": 0.5,
        "saf/held_out_loss_change": 0.25,
    }
    assert set(tags["scalars"]) == set(expected)
    for name, value in expected.items():
        (event,) = events.Scalars(name)
        assert event.step == 60
        assert event.value == pytest.approx(value, rel=1e-6)
    maps = {"saf/heads/variance", "saf/heads/kl", "saf/heads/entropy", "saf/heads/sink mass", "saf/heads/recent mass"}
    patterns = {f"saf/patterns/{head.name}" for head in freeze.plan.heads}
    assert set(tags["images"]) == (maps | patterns if accepted else set())


def test_weights_and_biases() -> None:
    logged: list[tuple[dict[str, Any], int]] = []
    logger = object.__new__(WandBLogger)
    logger.wandb = SimpleNamespace(
        Image=lambda image: image.shape, log=lambda values, step: logged.append((values, step))
    )
    log_images(logger, {"heads/kl": np.zeros((4, 5, 3), np.uint8)}, 7)
    assert logged == [({"saf/heads/kl": (4, 5, 3)}, 7)]


def test_nothing_is_computed_without_a_logger() -> None:
    for logger in (LoggerContainer(), BaseLogger()):
        # a result that cannot be read
        log_freeze(logger, FreezeRow(step=60, heads=4, folder=""), None)  # type: ignore[arg-type]
