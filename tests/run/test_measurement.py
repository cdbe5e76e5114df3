"""A model whose output is not finite is not frozen, even where its attention is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.config import load_config
from saf_titan.run.calibration_data import CalibrationData
from saf_titan.run.measurement import Measurement, logged_progress
from tests.saf.install.test_guard import Model, inputs


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_an_output_that_is_not_finite_is_refused(broken: float) -> None:
    model = Model()
    batches = inputs().split(1)
    calls = []

    def forward(batch: Tensor) -> Tensor:
        calls.append(batch)
        output = model(batch)
        # in one number of one batch
        output[0, 3, 2] = broken if len(calls) == len(batches) else 0.0
        return output

    settings = load_config(None).saf
    measurement = Measurement(model, settings, forward=forward, sequence_losses=lambda batch: batch, group=None)
    data = CalibrationData(batches, positions=tuple(range(len(batches))), seed=0, source="here")
    with pytest.raises(ValueError, match=r"the run has diverged: the model's output .* no head was frozen"):
        measurement.calibrate(data, ("variance",), None, logged_progress())
