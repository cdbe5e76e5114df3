"""What the page shows of every head: its numbers, what was done with it, and pictures of its attention.

The sources are the statistics of a calibration and, for static heads, their patterns. `explorer` makes HTML of it.

Legend: L layers, H query heads, T time, N points of a curve, P blocks of the pooled attention maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from saf_titan.heads.names import Head
from saf_titan.report.event import FreezeEvent, pooled_pattern
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticHead, StaticPlan
from saf_titan.saf.select.registry import SELECTORS

Mark = Literal["static", "skipped", "static before"]

_POINTS = 96
"""Points of a curve; they lie evenly on a logarithmic axis."""
_ROWS = 4
"""Rows of a block that the picture of a pattern averages: all rows of all heads would take minutes at T = 8192."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number of every head."""

    name: str
    meaning: str
    """What a small and a large value say, as a phrase."""
    values_LH: Tensor
    """NaN where the number is not known."""
    is_share: bool = False
    """Whether values lie in [0, 1] and are drawn on that scale, so that models can be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A function of a position or a distance, in tokens."""

    name: str
    axis: str
    x_N: Tensor
    """At least 1, so that the axis can be logarithmic."""
    y_N: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPictures:
    """The panel of one head."""

    notes: tuple[tuple[str, str], ...] = ()
    """Names and values of what is known of this head alone."""
    maps: tuple[tuple[str, Tensor], ...] = ()
    """Pooled attention (P, P) by name. Rows are queries, and each sums to 1."""
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadMaps:
    """All heads of a model at one moment."""

    metrics: tuple[Metric, ...]
    """At least one; the first is shown first."""
    marks: Mapping[Head, Mark] = field(default_factory=dict)
    pictures: Mapping[Head, HeadPictures] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, query heads a layer)."""
        num_layers, num_heads = self.metrics[0].values_LH.shape
        return num_layers, num_heads


def maps_of_event(event: FreezeEvent) -> HeadMaps | None:
    """Return what is known of the heads at a freeze; None without its plan and statistics."""
    if event.plan is None or event.calibration is None:
        return None
    return maps_of_freeze(event.calibration, event.plan, event.step)


def maps_of_freeze(calibration: Calibration, plan: StaticPlan, step: int) -> HeadMaps:
    """Return what a calibration and the plan made from it say of the heads; `step` is the step of the freeze."""
    before = [(layer, head) for layer, head in (~calibration.live_LH).nonzero().tolist()]
    marks: dict[Head, Mark] = dict.fromkeys(before, "static before")
    marks |= {(head.layer, head.head): "skipped" for head in plan.skipped}
    # in the order in which they were chosen
    marks |= {head.slot: "static" for head in sorted(plan.heads, key=lambda head: head.rank) if head.step == step}
    return HeadMaps(
        # the selectors "random" and "list" have no score
        metrics=metrics_of(
            calibration, first=plan.selector if plan.selector in calibration.all_scores() else "variance"
        ),
        marks=marks,
        pictures=pictures_of(calibration, plan),
    )


def metrics_of(calibration: Calibration, *, first: str = "variance") -> tuple[Metric, ...]:
    """Return the numbers that a calibration has of every head, that of the selector `first` before the others."""
    scores = calibration.all_scores()
    names = sorted(scores, key=lambda name: name != first)
    return (
        *(Metric(name=name, meaning=_meaning(name), values_LH=scores[name]) for name in names),
        Metric(
            name="entropy",
            meaning="entropy of a row of attention, as a share of the largest possible; 1 is uniform",
            values_LH=calibration.entropy_LH,
            is_share=True,
        ),
        Metric(
            name="sink mass",
            meaning="mean attention on the first token",
            values_LH=calibration.sink_mass_LH,
            is_share=True,
        ),
        Metric(
            name="recent mass",
            meaning="mean attention on the 64 latest tokens",
            values_LH=calibration.recent_mass_LH(),
            is_share=True,
        ),
    )


def _meaning(score: str) -> str:
    """Return what a score says, also of a score that this version does not know, from a plan of a later version."""
    known = SELECTORS.get(score)
    return f"{known.doc}; low: more static" if known else "low: more static"


def pictures_of(calibration: Calibration, plan: StaticPlan | None = None) -> dict[Head, HeadPictures]:
    """Return the panels of all heads that were live during a calibration, and of all that are static in `plan`."""
    static = {head.slot: head for head in plan.heads} if plan else {}
    skipped = {(head.layer, head.head): head for head in plan.skipped} if plan else {}
    pictures = {}
    for layer in range(calibration.num_layers):
        for head in range(calibration.num_heads):
            slot = (layer, head)
            notes: list[tuple[str, str]] = []
            maps: list[tuple[str, Tensor]] = []
            curves: list[Curve] = []
            if calibration.live_LH[slot]:
                mean_PP = calibration.mean_map_LHPP[slot].double()
                maps.append(("mean attention", mean_PP))
                curves += _mean_curves(calibration, slot)
            if slot in static:
                chosen = static[slot]
                notes += [
                    ("static since", f"step {chosen.step:,}"),
                    ("rank among the chosen", f"{chosen.rank}"),
                    ("KL of the fit", f"{chosen.fit_kl:.4f} nats a row"),
                ]
                if not chosen.pattern.frees_values:
                    maps.append(("pattern", pooled_pattern(chosen, calibration.mean_map_LHPP.shape[-1], rows=_ROWS)))
                    curves += _pattern_curves(chosen)
            elif slot in skipped:
                notes.append(("skipped", skipped[slot].reason))
            if notes or maps:
                pictures[slot] = HeadPictures(notes=tuple(notes), maps=tuple(maps), curves=tuple(curves))
    return pictures


def _mean_curves(calibration: Calibration, slot: Head) -> Iterator[Curve]:
    T = calibration.seq_len
    keys_T = torch.arange(T, 0, -1, dtype=torch.float64)
    # key j is seen by T - j queries (without a window), and distance k occurs in T - k rows
    for name, axis, mass_T in (
        ("mean attention by key", "position of the key + 1", calibration.column_mass_LHT[slot] / keys_T),
        ("mean attention by distance", "distance + 1", calibration.diagonal_mass_LHT[slot] / keys_T),
    ):
        x_N, y_N = _log_bins(mass_T)
        yield Curve(name=name, axis=axis, x_N=x_N, y_N=y_N)


def _pattern_curves(head: StaticHead) -> Iterator[Curve]:
    names = (("alpha", "position of the key + 1"), ("rho", "distance + 1"))
    for (name, axis), values_T in zip(names, head.pattern.vectors, strict=True):
        x_N, y_N = _log_bins(values_T.double())
        yield Curve(name=name, axis=axis, x_N=x_N, y_N=y_N)


def _log_bins(values_T: Tensor) -> tuple[Tensor, Tensor]:
    """Average a vector over bins that lie evenly on a logarithmic axis; the first bins hold a single value each."""
    T = len(values_T)
    borders = sorted({round(math.exp(math.log(T + 1) * i / _POINTS)) for i in range(_POINTS + 1)} | {1, T + 1})
    pairs = list(pairwise(borders))
    x_N = torch.tensor([math.sqrt(a * (b - 1)) for a, b in pairs], dtype=torch.float64)
    # the axis ends at the length
    x_N[-1] = T
    y_N = torch.stack([values_T[a - 1 : b - 1].double().mean() for a, b in pairs])
    return x_N, y_N
