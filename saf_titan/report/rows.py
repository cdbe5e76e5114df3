"""The rows of a run's `metrics.jsonl`: one dataclass for each kind, shared by the trainer and the report.

`row_lines` writes and reads them. To add a field, give it a default, so that the report still reads the rows of older
runs. This module imports neither torch nor matplotlib, so that the trainer can import it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

METRICS_FILE = "metrics.jsonl"
"""Name of the file in a run's folder."""


def perplexity(loss: float) -> float:
    """exp of a loss in nats per token: infinity where that overflows, nan for nan."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRow:
    """A process group began the run at step 0."""

    step: int
    world_size: int | None = None
    """Number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRow:
    """A process group went on with the run from a checkpoint."""

    step: int
    """Optimizer steps that were done in the checkpoint."""
    world_size: int | None = None
    """Number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRow:
    """A logging interval of training, which ends with step `step`."""

    step: int
    loss: float
    """Mean over the batch of step `step`, in nats per token; not finite if the run diverged."""
    grad_norm: float = math.nan
    """Norm of the gradient of step `step`, before clipping."""
    tokens_per_second: float = math.nan
    """Over all ranks, mean of the interval."""
    step_seconds: float = math.nan
    """Mean time of an optimizer step of the interval; validation, checkpoints and freezes do not count."""
    tokens: float = math.nan
    """Tokens that the run had seen after step `step`."""
    static_heads: int = 0
    tflops: float = math.nan
    """Of one rank."""
    seconds: float = math.nan
    """Wall time of the run so far, as in the `finish` row: validation, checkpoints and freezes count."""
    peak_memory_gib: float = math.nan
    """Largest memory of the first rank in the interval: of the accelerator, on a CPU of the process."""
    rates: dict[str, float] = field(default_factory=dict)
    """Learning rate of each circuit, by name; in JSON each is an entry `lr/NAME` of the row itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationRow:
    """One pass over the validation windows after step `step`."""

    step: int
    loss: float
    """Nats per token."""
    phase: str
    """"scheduled", "before_freeze", "after_freeze" or "final"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyRow:
    """Answers on one set of generated held-out sequences after step `step`."""

    step: int
    phase: str
    """As in `ValidationRow`."""
    length: int
    """Tokens of a sequence."""
    pairs: int = 0
    """Key-value pairs of a sequence; 0 for class tokens."""
    examples: int = 0
    """Sequences."""
    accuracy: float = math.nan
    """Share of the labelled positions of all sequences that are answered rightly (micro-average)."""
    example_accuracy: float = math.nan
    """Mean over sequences of the share within one; where all have as many labels, the same number."""
    all_right: float = math.nan
    """Share of sequences with every answer right."""
    loss: float = math.nan
    """Nats per labelled position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelevanceRow:
    """Where attention looks when generated held-out sequences ask something, after step `step`.

    Each question has relevant tokens, from which its answer follows. The mass of a question is the attention that its
    query gives to them. A question without a relevant token does not count.
    """

    step: int
    phase: str
    """As in `ValidationRow`."""
    length: int
    """Tokens of a sequence."""
    pairs: int = 0
    """Key-value pairs of a sequence; 0 for class tokens."""
    questions: int = 0
    """Labelled positions with a relevant token, over all sequences."""
    mass: tuple[tuple[float, ...], ...] = ()
    """Mean over questions of the mass, by layer and head, in [0, 1]; nan for a head without output."""
    confidence: tuple[tuple[float, ...], ...] = ()
    """Share of the questions whose mass is at least 0.5 (attention confidence, AC), by layer and head."""
    dtap: tuple[tuple[float, ...], ...] = ()
    """Of each layer the number of questions in each of 10 x 10 cells, row by row: the row is the mass, averaged over
    the heads of the layer, the column the probability of the right answer, both from 0 to 1. All zeros for a layer
    without heads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _FreezeFields:
    """What a freeze and an undone freeze have in common."""

    step: int
    """Optimizer steps that were done before the freeze."""
    heads: int
    """Static heads of the whole model with this freeze."""
    new_heads: int | None = None
    """Heads that this freeze added; None in rows of older runs."""
    folder: str = ""
    """Folder of the plan and the statistics, relative to the run's folder; empty if the freeze was undone."""
    digest: str = ""
    """`StaticPlan.digest` of the plan."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage of the freeze."""
    held_out_losses: tuple[float, float] | None = None
    """Loss on the calibration sequences before and after, in nats per token; None where the schedule has no budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeRow(_FreezeFields):
    """Heads became static."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeUndoneRow(_FreezeFields):
    """A freeze was undone, because the loss rose by more than the budget allowed; its plan is not saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishRow:
    """The run did its last step: step `training.steps`, or the one that used up `saf.matched_seconds`."""

    step: int
    seconds: float = math.nan
    """Wall time of the whole run, without the time between a checkpoint and its resume."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitsRow:
    """The circuits of each layer at step `step`: one number a layer, nan for a layer without a head to measure.

    Attention is that of live heads on a few held-out sequences, after the step; empty where it was not measured.
    """

    step: int
    qk_update: tuple[float, ...] = ()
    """Size of the step's change of W_Q^T W_K relative to W_Q^T W_K; see `saf_titan.circuits.speed`."""
    ov_update: tuple[float, ...] = ()
    """The same of W_O W_V."""
    entropy: tuple[float, ...] = ()
    """`AttentionStats.entropy_H`, mean over heads: 1 is uniform attention."""
    sink_mass: tuple[float, ...] = ()
    """`AttentionStats.sink_mass_H`, mean over heads: attention on the first key."""
    recent_mass: tuple[float, ...] = ()
    """`AttentionStats.recent_mass_H`, mean over heads: attention on the 64 latest keys."""
    seconds: float = math.nan
    """Wall time of the measurement; the time of an optimizer step does not include it."""


Row = (
    StartRow
    | ResumeRow
    | TrainRow
    | ValidationRow
    | AccuracyRow
    | RelevanceRow
    | CircuitsRow
    | FreezeRow
    | FreezeUndoneRow
    | FinishRow
)

KINDS: dict[str, type[Row]] = {
    "start": StartRow,
    "resume": ResumeRow,
    "train": TrainRow,
    "validation": ValidationRow,
    "accuracy": AccuracyRow,
    "relevance": RelevanceRow,
    "circuits": CircuitsRow,
    "freeze": FreezeRow,
    "freeze_undone": FreezeUndoneRow,
    "finish": FinishRow,
}
"""The `kind` of each class of rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownRow:
    """A sound row whose kind is not in `KINDS`: written by another version, kept as it is."""

    kind: str
    fields: dict[str, Any]
