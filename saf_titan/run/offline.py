"""Calibrating a checkpoint in one process: its weights, its plan and held-out windows, without a trainer.

What a freeze in training would measure at that step, by the same code: see ``Measurement.calibrate``.
"""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # isort: skip

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.protocols.model_spec import ModelSpec

from saf_titan.config import RunConfig
from saf_titan.data.sources import training_loader
from saf_titan.models import model_spec
from saf_titan.run.calibration_data import CalibrationData, TokenBatch, calibration_loader, read_calibration_data
from saf_titan.run.measurement import Measurement, sequence_losses
from saf_titan.run.precision import compute_precision, uses_autocast
from saf_titan.run.resume import SavedFreeze, model_identity, read_freeze, require_same_model
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.install.checkpoint import load_weights
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.freeze_state import FreezeState
from saf_titan.saf.select.gradient_ema import GradientEMA
from saf_titan.saf.select.registry import SELECTORS


@dataclass(frozen=True)
class OpenCheckpoint:
    """The model of a checkpoint with its static heads, and the held-out windows that a freeze would be decided on."""

    model: nn.Module
    device: torch.device
    measurement: Measurement[TokenBatch]
    data: CalibrationData[TokenBatch]
    saved: SavedFreeze


def calibrate_checkpoint(
    run: RunConfig, checkpoint: Path, progress: Progress, *, selectors: Collection[str] = ()
) -> Calibration:
    """Statistics of the live heads of a checkpoint, and the scores of ``selectors``, by default ``run.saf.selector``.

    Computes in the precision of training, on the accelerator if there is one. Raises ValueError where the checkpoint
    is not of the configured model, has no live head or not what a selector needs, and for too little data.
    """
    selectors = selectors or (run.saf.selector,)
    opened = open_checkpoint(run, checkpoint, selectors)
    watchers = [name for name in selectors if SELECTORS[name].watches_gradients]
    gradient = _gradient_average(opened.saved.state, run, checkpoint, watchers[0]) if watchers else None
    return opened.measurement.calibrate(opened.data, selectors, gradient, progress)


def open_checkpoint(run: RunConfig, checkpoint: Path, selectors: Collection[str] = ()) -> OpenCheckpoint:
    """Load a checkpoint as :func:`calibrate_checkpoint` does; the same errors."""
    # small mistakes come before the weights are read
    if run.model.fuse_qkv:
        raise ValueError(
            "model.fuse_qkv = true: that attention hands nothing over; set it to false, for the same weights"
        )
    spec = model_spec(run.model, run.shape, max_seq_len=run.max_seq_len, autocast=uses_autocast(run))
    loader = calibration_loader(training_loader(run), run)
    saved = read_freeze(checkpoint)
    if saved.model is not None:
        require_same_model(saved.model, model_identity(run), source=str(checkpoint))
    if saved.plan is not None and len(saved.plan.heads) == run.shape.total_heads:
        raise ValueError(f"every head of {checkpoint} is static already: there is nothing left to calibrate")
    watchers = [name for name in selectors if SELECTORS[name].watches_gradients]
    if watchers:
        _gradient_average(saved.state, run, checkpoint, watchers[0])
    device = torch.device("cpu" if compat.is_cpu() else torch.accelerator.current_accelerator() or "cpu")
    model = load_model(spec, checkpoint, device, TORCH_DTYPE_MAP[compute_precision(run)])

    def forward(batch: TokenBatch) -> Tensor:
        logits_BTV: Tensor = model(batch[0]["input"].to(device))
        return logits_BTV

    def losses(batch: TokenBatch) -> Tensor:
        return sequence_losses(forward(batch), batch[1].to(device))

    measurement = Measurement(model, run.saf, forward=forward, sequence_losses=losses, group=None)
    install(measurement.attentions, saved.plan)
    return OpenCheckpoint(model, device, measurement, read_calibration_data(loader, run), saved)


def _gradient_average(state: bytes | None, run: RunConfig, checkpoint: Path, selector: str) -> GradientEMA:
    """Load the average of the gradients of the steps before a checkpoint."""
    saved = FreezeState.from_bytes(state).gradient
    if not saved or not saved["num_updates"]:
        raise ValueError(
            f'the selector "{selector}" averages gradients over the steps of training, and {checkpoint} holds no '
            f'average: only a run with saf.enable = true and saf.selector = "{selector}" saves one'
        )
    average = GradientEMA(run.shape.num_layers, run.shape.num_heads)
    average.load_state_dict(saved)
    return average


def load_model(spec: ModelSpec, checkpoint: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Build the model of a checkpoint, without its static heads, and load its weights as `dtype`.

    Raises ValueError if the checkpoint is incomplete, damaged, or of another model.
    """
    with torch.device("meta"):
        model = spec.model.build()
    model.to_empty(device=device)
    # buffers are not in a checkpoint
    model.init_weights()
    load_weights(checkpoint, model.state_dict())
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model
