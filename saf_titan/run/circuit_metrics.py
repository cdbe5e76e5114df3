"""Measures, every so many steps, how far a step moves each circuit and where attention looks.

The measurement does not change training. Weights are copied before the step and compared after it, and attention is
measured on held-out sequences as before a freeze. A measured step needs memory for a second copy of this rank's
attention weights.

Legend: L layers, H query heads, K kv heads, D head width, C model width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchtitan.tools.logging import logger

from saf_titan.circuits.speed import relative_update
from saf_titan.config import RunConfig
from saf_titan.data.cursor import CursorLoader
from saf_titan.layers.attention import SAFAttention
from saf_titan.report.rows import CircuitsRow
from saf_titan.run.calibration_data import CalibrationData, TokenBatch, held_out_loader, window_positions
from saf_titan.saf.calibrate.calibration import Calibration

_MATRICES = ("wq", "wk", "wv", "wo")


class CircuitMetrics:
    """Measures the circuits of a model at every step that `frequency` selects."""

    def __init__(self, model: nn.Module, frequency: int, attention: Callable[[], Calibration] | None) -> None:
        """
        Args:
            frequency: steps between two measurements; 0 to measure nothing.
            attention: measures the attention of live heads, as a collective; None to leave attention out.
        """
        self._attentions = [module for module in model.modules() if isinstance(module, SAFAttention)]
        self._frequency, self._attention = frequency, attention
        self._before: list[dict[str, Tensor]] = []
        self._seconds = 0.0
        if frequency and not self._attentions:
            self._frequency = 0
            logger.info(
                "circuits.metrics_freq: nothing is measured, because queries, keys and values of this model are one "
                "matrix; set model.fuse_qkv = false to see its circuits"
            )

    def is_due(self, step: int) -> bool:
        """Return whether optimizer step `step`, counted from 1, is to be measured."""
        return self._frequency > 0 and step % self._frequency == 0

    def remember(self) -> None:
        """Copy this rank's share of the weights; call it just before a step that is due."""
        start = time.perf_counter()
        self._before = [
            {name: weight.detach().clone() for name, weight in _weights(attention).items()}
            for attention in self._attentions
        ]
        self._seconds = time.perf_counter() - start

    def row(self, step: int) -> CircuitsRow:
        """Return the measurement of step `step`; call it just after the step, on all ranks together.

        Raises ValueError if attention is not finite.
        """
        assert len(self._before) == len(self._attentions), "remember() comes first"
        start = time.perf_counter()
        updates = [
            layer_updates(attention, before) for attention, before in zip(self._attentions, self._before, strict=True)
        ]
        self._before = []
        qk_update, ov_update = zip(*updates, strict=True)
        row = CircuitsRow(step=step, qk_update=qk_update, ov_update=ov_update)
        if self._attention is not None and any(attention.live_heads for attention in self._attentions):
            calibration = self._attention()
            row = replace(
                row,
                entropy=_mean_over_heads(calibration.entropy_LH),
                sink_mass=_mean_over_heads(calibration.sink_mass_LH),
                recent_mass=_mean_over_heads(calibration.recent_mass_LH()),
            )
        return replace(row, seconds=self._seconds + time.perf_counter() - start)


def layer_updates(attention: SAFAttention, before: dict[str, Tensor]) -> tuple[float, float]:
    """Return the relative updates of W_Q^T W_K and W_O W_V of a layer; nan for a circuit without a head to measure.

    The QK circuit is measured over live heads, because static heads have no queries and keys. The OV circuit is
    measured over all heads except pruned ones, because values and outputs of static heads are still trained.

    Args:
        before: wq, wk, wv and wo before the step, sharded like the weights now.
    """
    group = attention.n_heads // attention.n_kv_heads

    def of_heads(weight_RC: Tensor, heads: Sequence[int]) -> Tensor:
        """Return the rows of `heads`: (all heads * D, C) -> (number of heads, D, C)."""
        weight_RC = weight_RC.full_tensor() if isinstance(weight_RC, DTensor) else weight_RC
        return weight_RC.unflatten(0, (-1, attention.qkv_linear.head_dim))[list(heads)]

    def factors(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        live, output = attention.live_heads, attention.output_heads
        return (
            of_heads(weights["wq"], live),
            of_heads(weights["wk"], [head // group for head in live]),
            of_heads(weights["wo"].T, output),
            of_heads(weights["wv"], [head // group for head in output]),
        )

    with torch.no_grad():
        old, new = factors(before), factors(_weights(attention))
        qk, ov = (relative_update(*old[pair], *new[pair]) for pair in (slice(0, 2), slice(2, 4)))
    return float(qk), float(ov)


def held_out_sequences(
    corpus: CursorLoader.Config, run: RunConfig, *, world_size: int, rank: int
) -> CalibrationData[TokenBatch] | None:
    """Read this rank's share of the sequences on which attention is measured, the same ones every time.

    Return None if nothing is to be measured, and, with a warning in the log, if too few windows are held out.
    """
    if not run.circuits.metrics_freq:
        return None
    wanted = math.ceil(run.circuits.metrics_sequences / world_size) * world_size
    try:
        loader = held_out_loader(corpus, run, sequences=wanted, world_size=world_size, rank=rank)
        if loader.num_windows < wanted:
            raise ValueError(
                f"{run.data.path} has {loader.num_windows} windows for calibration, fewer than {wanted}; use shorter "
                f"sequences, or tokenize with more --val-tokens"
            )
    except ValueError as error:
        logger.warning(f"circuits.metrics_freq: the updates of the circuits are measured, attention is not: {error}")
        return None
    positions = window_positions(loader, run, wanted)
    return CalibrationData([next(iter(loader))], positions, run.saf.calibration_seed, run.data_source)


def _weights(attention: SAFAttention) -> dict[str, Tensor]:
    qkv = attention.qkv_linear
    matrices = (qkv.wq, qkv.wk, qkv.wv, attention.wo)
    return {name: matrix.weight for name, matrix in zip(_MATRICES, matrices, strict=True)}


def _mean_over_heads(values_LH: Tensor) -> tuple[float, ...]:
    return tuple(values_LH.nanmean(1).tolist())
