"""Learning rates by circuit: the parameters that a rule applies to, and its factor over the course of training."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from saf_titan.fields.ranges import NOT_NEGATIVE, Range

CIRCUITS = {
    "qk": "wq and wk",
    "ov": "wv and wo",
    "mlp": "matrices of the feed-forward layers",
    "norm": "vectors of the norms",
    "embedding": "token and position embeddings, and the output matrix",
}
"""The names of the circuits, each with its parameters."""


@dataclass(frozen=True, kw_only=True)
class CircuitGroup:
    """A factor on the learning rate of some parameters, as `[[circuits.group]]` in a file.

    On the command line a group is one word: `qk:layers=6-11,factor=0.25,schedule=linear,ramp_steps=50`.
    """

    match: str
    """qk, ov, mlp, norm, embedding, or a regular expression that is searched in the names of parameters."""
    layers: tuple[int, ...] = ()
    """[first, last], both counted from 0 and included; on the command line first-last. []: all layers."""
    factor: Annotated[float, Range(above=0)] = 1.0
    """Factor on the learning rate. linear, hold_then_ramp: the factor at the start."""
    schedule: Literal["constant", "linear", "hold_then_ramp"] = "constant"
    """constant: always factor. linear: from factor to factor_end in ramp_steps. hold_then_ramp: the same, after
    hold_steps."""
    factor_end: Annotated[float, Range(above=0)] = 1.0
    """linear, hold_then_ramp: the factor after the ramp."""
    hold_steps: Annotated[int, NOT_NEGATIVE] = 0
    """hold_then_ramp: number of steps before the ramp."""
    ramp_steps: Annotated[int, NOT_NEGATIVE] = 0
    """linear, hold_then_ramp: number of steps of the ramp."""

    @property
    def name(self) -> str:
        """Name of the group in logs and metrics: the match, and the layers unless it has all."""
        return f"{self.match}[{self.layers[0]}-{self.layers[1]}]" if self.layers else self.match

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """Return the values of a table from the form of the command line. Raises ValueError if `text` is not of it."""
        # a regular expression may hold colons; the options never do
        match, colon, options = text.partition(":") if text.partition(":")[0] in CIRCUITS else text.rpartition(":")
        if not colon:
            match, options = text, ""
        table: dict[str, Any] = {"match": match}
        for option in filter(None, options.split(",")):
            name, equals, value = option.partition("=")
            if not equals or name not in {field.name for field in fields(cls)}:
                raise ValueError(f"{option!r} is no option of a group; write for example {match or 'qk'}:factor=10")
            table[name] = _value(name, value)
        return table

    def problem(self, num_layers: int) -> str | None:
        """Return why the group is impossible in a model of this many layers; None if it is possible."""
        if self.match not in CIRCUITS:
            try:
                re.compile(self.match)
            except re.error as error:
                return f"match = {self.match!r} is neither one of {', '.join(CIRCUITS)} nor a pattern: {error}"
        last = num_layers - 1
        if self.layers and not (len(self.layers) == 2 and 0 <= self.layers[0] <= self.layers[1] <= last):
            return f"layers must be [first, last] with 0 <= first <= last <= {last}, or [] for all layers"
        unused = {"constant": ("factor_end", "hold_steps", "ramp_steps"), "linear": ("hold_steps",)}
        defaults = CircuitGroup(match="")
        for name in unused.get(self.schedule, ()):
            if getattr(self, name) != getattr(defaults, name):
                return f'{name} has no effect with schedule = "{self.schedule}"'
        if self.schedule != "constant" and not self.ramp_steps:
            return f'ramp_steps must be at least 1 with schedule = "{self.schedule}"'
        return None


def _value(name: str, text: str) -> Any:
    if name in ("schedule", "match"):
        return text
    if name == "layers":
        numbers = re.fullmatch(r"(\d+)-(\d+)", text)
        if numbers is None:
            raise ValueError(f"layers={text}: write first-last, for example layers=6-11")
        return [int(numbers[1]), int(numbers[2])]
    try:
        return int(text)
    except ValueError:
        return float(text)
