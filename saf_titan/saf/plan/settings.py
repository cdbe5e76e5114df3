"""The settings that decide which heads become static and what replaces them, for configuration, CLI and library alike.

The string under a field is its documentation: `--help` prints it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from saf_titan.fields.choices import OneOf
from saf_titan.fields.convert import Mismatch, convert, field_types
from saf_titan.fields.ranges import FRACTION, NOT_NEGATIVE, Range
from saf_titan.heads.counts import Rounding
from saf_titan.saf.fit.content import DIRICHLET_SCALE
from saf_titan.saf.fit.method import FitMethod
from saf_titan.saf.fit.registry import CONTENTS, DENSE_CONTENTS
from saf_titan.saf.select.registry import SELECTORS


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of a plan. A value of the wrong type, out of range or unknown raises ValueError."""

    rate: Annotated[float, FRACTION] = 0.25
    """Share of all heads that are static in the end."""
    selector: Annotated[str, OneOf.entries(SELECTORS)] = "variance"
    """Which heads: the score that ranks them, lowest first."""
    heads: tuple[str, ...] = ()
    """Selector list: the heads, as ["L0H3", "L2H1"]."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of random selectors and of contents that draw."""
    content: Annotated[str, OneOf.entries(CONTENTS)] = "mean"
    """What takes the place of a head's attention."""
    dirichlet_scale: Annotated[float, Range(above=0)] = DIRICHLET_SCALE
    """Content dirichlet: factor on the precision of the distribution that fits the attention; the larger, the nearer
    the draw is to the mean. Published is 16."""
    max_dense_gib: Annotated[float, Range(above=0)] = 2.0
    """Contents with a matrix for each head: the largest size of all matrices in GiB (4 T^2 bytes per head). Each rank
    holds them twice, in the layers and in the plan, and each checkpoint once."""
    max_fit_kl: Annotated[float, Range(above=0)] = 0.2
    """A head whose pattern fits its mean attention worse than this (nats per row) stays live, and the next head of the
    ranking is tried. Content prune fits no pattern and skips no head."""
    fit_method: FitMethod = "lbfgs"
    """How patterns are fitted. lbfgs, ipf: to tolerance. adam400: the published 400 steps of Adam, for comparison."""
    rounding: Rounding = "round"
    """How rate times the number of heads becomes a count."""
    max_per_layer: Annotated[int, NOT_NEGATIVE] = 0
    """Static heads allowed in one layer. 0: no limit."""
    exclude_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that keep all heads live."""
    on_shortfall: Literal["error", "warn"] = "error"
    """What to do when too few heads can become static."""

    def __post_init__(self) -> None:
        for name, hint in field_types(PlanSettings).items():
            value = getattr(self, name)
            try:
                convert(value, hint)
            except Mismatch as mismatch:
                raise ValueError(f"{name} = {value!r} {mismatch}") from mismatch

    def without_effect(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the names of settings that have no effect together with the other settings, and the reason, worded as
        the end of a sentence."""
        selector, content = SELECTORS[self.selector], CONTENTS[self.content]
        if not selector.draws and not content.draws:
            yield ("seed",), f"on selector {selector.name} and content {content.name}, which draw nothing"
        if selector.name == "list":
            yield ("on_shortfall",), "on selector list, whose heads all become static or none does"
        else:
            yield ("heads",), f"on selector {selector.name}: only selector list takes heads by name"
        if not content.is_fitted:
            yield ("max_fit_kl", "fit_method"), f"on content {content.name}, which fits no pattern"
        if content.name not in DENSE_CONTENTS or not DENSE_CONTENTS[content.name].takes_scale:
            yield ("dirichlet_scale",), f"on content {content.name}, which is drawn from no Dirichlet distribution"
        if content.name not in DENSE_CONTENTS:
            yield ("max_dense_gib",), f"on content {content.name}, which has no matrices"
