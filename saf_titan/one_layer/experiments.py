"""The one-layer experiments: the eight maps of the paper's Figure 2, and attention against the ratio.

Source: arXiv 2608.06776, Figure 2. We do not know the sizes, learning rates and initial scale of the paper. Ours are
the defaults of `Training` and the ratios in `FIGURE_2`; both can be changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from saf_titan.analysis.relevance import attention_and_model_confidence, attention_confidence, dtap
from saf_titan.one_layer import theory
from saf_titan.one_layer.setting import Parametrization, Ramp, constant
from saf_titan.one_layer.train import Progress, Result, Training, train

FIGURE_2: tuple[tuple[str, Parametrization, Ramp], ...] = (
    ("FAFO", "FAFO", constant(1.0)),
    ("CAFO", "CAFO", constant(1.0)),
    ("FACO", "FACO", constant(1.0)),
    ("CACO", "CACO", constant(1.0)),
    ("FAFO, QK x 10", "FAFO", constant(10.0)),
    ("FAFO, QK x 1 to 20", "FAFO", Ramp(start=1.0, end=20.0, steps=2000)),
    ("CACO, QK x 5", "CACO", constant(5.0)),
    ("CACO, QK x 1 to 10", "CACO", Ramp(start=1.0, end=10.0, steps=2000)),
)
"""Title, parametrization and QK ratio of each map."""


@dataclass(frozen=True)
class Arm:
    """One trained setting and its prediction."""

    title: str
    result: Result
    maps_SXY: NDArray[np.float64]
    """The DTAP map of each seed; see `analysis.relevance.dtap`."""
    predicted_mass: float
    """Attention mass that the theory predicts at the same loss; NaN if the theory does not cover the setting."""

    def row(self) -> dict[str, float | str]:
        """Return one row of a table: column -> mean or standard deviation ("... sd") over seeds."""
        result = self.result
        mass = result.mass_S.numpy()
        values: dict[str, NDArray[np.float64]] = {
            "mass": mass,
            "AC": np.array([attention_confidence(seed) for seed in result.mass_SN.numpy()]),
            "ACMC": np.array(
                [
                    attention_and_model_confidence(*pair)
                    for pair in zip(result.mass_SN.numpy(), result.probability_SN.numpy(), strict=True)
                ]
            ),
            "loss": result.loss_S.numpy(),
            "steps": result.steps_S.double().numpy(),
        }
        row: dict[str, float | str] = {"setting": self.title, "predicted": self.predicted_mass}
        for name, value_S in values.items():
            row[name] = float(value_S.mean())
            row[f"{name} sd"] = float(value_S.std(ddof=1)) if len(value_S) > 1 else 0.0
        row["reached"] = int(result.reached_S.sum())
        return row


def figure_2(base: Training, *, bins: int = 10, progress: Callable[[str], Progress] | None = None) -> list[Arm]:
    """Train the eight settings of Figure 2; `base` gives everything except the parametrization and the ratio.

    Args:
        bins: number of bins of each axis of a DTAP map.
        progress: takes the title of a setting and returns its progress callback.
    """
    arms = []
    for title, parametrization, ramp in FIGURE_2:
        training = replace(base, parametrization=parametrization, ramp=ramp)
        arms.append(run_arm(title, training, bins=bins, progress=progress and progress(title)))
    return arms


def run_arm(title: str, training: Training, *, bins: int = 10, progress: Progress | None = None) -> Arm:
    """Train one setting and return the result with its prediction.

    Raises ValueError if the loss to stop at is not below the loss at the start.
    """
    # predicted first, because the prediction raises for a loss that the start has already passed
    predicted = predicted_mass(training)
    result = train(training, progress=progress)
    pairs = zip(result.mass_SN.numpy(), result.probability_SN.numpy(), strict=True)
    return Arm(title, result, np.stack([dtap(*pair, bins=bins) for pair in pairs]), predicted)


def predicted_mass(training: Training) -> float:
    """Return the attention mass, in (0, 1), that the theory predicts at the final loss of a training.

    Return NaN for a training that the theory does not cover.
    """
    initial = predicted_start(training)
    if initial is None:
        return math.nan
    final = theory.integrate(
        training.parametrization,
        training.task,
        training.ramp,
        until_loss=training.until_loss,
        rate=training.rate,
        initial=initial,
        tolerance=1e-7,
    )
    return theory.attention_mass(final.gap, training.task)


def predicted_start(training: Training) -> theory.State | None:
    """Return the state from which the theory predicts a training; None for a training that the theory does not cover.

    The theory is about gradient descent on the labels' logits, so it covers neither AdamW nor a softmax over the full
    vocabulary. It assumes aligned weights. For a random start, whose factorized circuits have many singular values, the
    prediction starts at the theory's default of 0.1 whatever `init_scale` is: between 0.01 and 1 the start changes the
    predicted mass by at most 0.01 (default task, NLL 0.001, ratios 1 and 10).
    """
    if training.optimizer == "adamw" or training.full_vocabulary:
        return None
    if training.aligned:
        return theory.start(training.parametrization, training.task, singular_value=training.init_scale)
    return theory.start(training.parametrization, training.task)


def sweep(base: Training, ratios: Sequence[float], *, progress: Callable[[str], Progress] | None = None) -> list[Arm]:
    """Train `base` at each of several constant ratios."""
    return [
        run_arm(f"{ratio:g}", replace(base, ramp=constant(ratio)), progress=progress and progress(f"ratio {ratio:g}"))
        for ratio in ratios
    ]
