"""Calibrates a checkpoint in one process, without a trainer.

The result is what a freeze in training would measure at that step; both use ``Measurement.calibrate``.
"""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

import json
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
from saf_titan.run.resume import SavedFreeze, model_settings, read_freeze, require_same_settings
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.install.checkpoint import load_weights
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.freeze_state import FreezeState
from saf_titan.saf.select.gradient_ema import GradientEMA
from saf_titan.saf.select.registry import SELECTORS


@dataclass(frozen=True)
class OpenCheckpoint:
    """The model of a checkpoint with its static heads, and the calibration sequences that a freeze would use."""

    model: nn.Module
    device: torch.device
    measurement: Measurement[TokenBatch]
    data: CalibrationData[TokenBatch]
    saved: SavedFreeze


def calibrate_checkpoint(
    run: RunConfig, checkpoint: Path, progress: Progress, *, selectors: Collection[str] = ()
) -> Calibration:
    """Return statistics of a checkpoint's live heads, with scores of ``selectors`` (default: ``run.saf.selector``).

    Computes in the precision of training, on the accelerator if there is one. Raises ValueError if the checkpoint is
    of another model than ``run``, has no live head, or lacks an average of gradients that a selector needs, and if
    there are too few calibration sequences.
    """
    selectors = selectors or (run.saf.selector,)
    opened = open_checkpoint(run, checkpoint, selectors)
    watchers = [name for name in selectors if SELECTORS[name].watches_gradients]
    gradient = _gradient_average(opened.saved.state, run, checkpoint, watchers[0]) if watchers else None
    return opened.measurement.calibrate(opened.data, selectors, gradient, progress)


def open_checkpoint(run: RunConfig, checkpoint: Path, selectors: Collection[str] = ()) -> OpenCheckpoint:
    """Load a checkpoint for measurements; raises the errors of :func:`calibrate_checkpoint`."""
    # everything that can be checked without the weights is checked first
    if run.model.fuse_qkv:
        raise ValueError(
            "model.fuse_qkv = true: queries and keys of a fused projection cannot be recorded; set it to false, which "
            "works with the same weights"
        )
    spec = model_spec(run.model, run.shape, max_seq_len=run.max_seq_len, autocast=uses_autocast(run))
    loader = calibration_loader(training_loader(run), run)
    saved = read_freeze(checkpoint)
    if saved.model is not None:
        require_same_settings(saved.model, model_settings(run), source=str(checkpoint))
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

    identity = json.loads(model_settings(run))
    measurement = Measurement(model, run.saf, forward=forward, sequence_losses=losses, group=None, identity=identity)
    install(measurement.attentions, saved.plan)
    return OpenCheckpoint(model, device, measurement, read_calibration_data(loader, run), saved)


def _gradient_average(state: bytes | None, run: RunConfig, checkpoint: Path, selector: str) -> GradientEMA:
    """Return the average of gradients that a checkpoint holds; ValueError if it holds none."""
    saved = FreezeState.from_bytes(state).gradient
    if not saved or not saved["num_updates"]:
        raise ValueError(
            f'the selector "{selector}" averages gradients over the steps of training, but {checkpoint} holds no '
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
