"""The plan of static heads: which heads are static, with which pattern, and why. Plain data, stored with the model.

Legend: N static heads of the model, T time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saf_titan.heads.names import Head, head_name
from saf_titan.saf import container
from saf_titan.saf.calibrate.calibration import CalibrationRecord
from saf_titan.saf.fit.content import CompactContent, DenseContent, PrunedContent
from saf_titan.saf.fit.pattern import CompactPattern, DensePattern, Pattern, PrunedPattern
from saf_titan.saf.fit.registry import CONTENTS

_KIND = "static_plan"
PLAN_VERSION = 1


@dataclass(frozen=True, eq=False)
class StaticHead:
    """One head whose attention is replaced by a fixed pattern."""

    layer: int
    head: int
    pattern: Pattern
    score: float
    fit_kl: float
    """Mean KL of a row from the mean attention to the pattern, nats; 0 for a pattern that was not fitted."""
    rank: int
    """Place in the ranking of its event, from 0."""
    step: int
    """Training step at which the head became static."""

    @property
    def slot(self) -> Head:
        """(layer, head)."""
        return self.layer, self.head

    @property
    def name(self) -> str:
        """For example ``L3H5``."""
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class SkippedHead:
    """A head that ranked before the last chosen one and was not chosen."""

    layer: int
    head: int
    score: float
    fit_kl: float | None
    reason: str

    @property
    def name(self) -> str:
        """For example ``L3H5``."""
        return head_name(self.layer, self.head)


@dataclass(frozen=True, eq=False)
class StaticPlan:
    """All static heads of a model, ascending by (layer, head), and how they were found."""

    heads: tuple[StaticHead, ...]
    skipped: tuple[SkippedHead, ...]
    """The heads that the last event skipped."""
    step: int
    selector: str
    content: str
    rate: float
    T_fit: int
    """Tokens of the longest sequence that the patterns are defined for; a shorter one uses their beginning, exactly."""
    record: CalibrationRecord
    version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        slots = [head.slot for head in self.heads]
        if slots != sorted(set(slots)):
            raise ValueError(f"the heads of a plan must be in ascending order, each once, got {slots}")
        for head in self.heads:
            if problem := head.pattern.problem(self.T_fit):
                raise ValueError(f"{head.name}, content {self.content}: {problem}")
        expected = _PATTERN_TYPES.get(type(CONTENTS.get(self.content)))
        if wrong := [head for head in self.heads if expected and not isinstance(head.pattern, expected)]:
            raise ValueError(
                f"{wrong[0].name}, content {self.content}: the pattern must be a {expected.noun if expected else ''}, "
                f"got a {wrong[0].pattern.noun}"
            )

    @property
    def is_compact(self) -> bool:
        """Whether every pattern is two vectors, which can be trained further."""
        return all(head.pattern.is_compact for head in self.heads)

    @property
    def frees_values(self) -> bool:
        """Whether static heads give up their values and output too, as pruned heads do."""
        return any(head.pattern.frees_values for head in self.heads)

    @cached_property
    def digest(self) -> str:
        """sha256 of the content: equal digests mean equal plans."""
        return container.digest(self._header(), self._tensors())

    def layers(self) -> dict[int, tuple[StaticHead, ...]]:
        """Return the static heads of each layer that has any, ascending."""
        return {layer: tuple(group) for layer, group in groupby(self.heads, key=lambda head: head.layer)}

    def extended_by(self, later: StaticPlan) -> StaticPlan:
        """Return the plan after a later event of a ramp added heads; all other fields are those of `later`.

        Raises ValueError if the fits differ in length, the contents differ, or a head is in both.
        """
        if self.T_fit != later.T_fit:
            raise ValueError(
                f"plans fitted to lengths {self.T_fit} and {later.T_fit} cannot be joined: calibrate with "
                f"sequences of {self.T_fit} tokens"
            )
        if self.content != later.content:
            raise ValueError(
                f"plans of content {self.content!r} and {later.content!r} cannot be joined; keep "
                f"saf.content = {self.content!r}"
            )
        heads = tuple(sorted(self.heads + later.heads, key=lambda head: head.slot))
        return dataclasses.replace(later, heads=heads)

    def to_bytes(self) -> bytes:
        """Return the whole plan as the bytes of a safetensors file with a JSON header."""
        return container.pack(_KIND, self.version, self._header(), self._tensors())

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "the data") -> StaticPlan:
        """Undo `to_bytes`. Raises ValueError, which names `source`, if the bytes are not a whole, unedited plan."""
        header, tensors = container.unpack(data, _KIND, PLAN_VERSION, source=source)
        patterns = _read_patterns(header, tensors)
        fields = [{name: value for name, value in head.items() if name != "fft_error"} for head in header["heads"]]
        return cls(
            heads=tuple(StaticHead(**head, pattern=p) for head, p in zip(fields, patterns, strict=True)),
            skipped=tuple(SkippedHead(**head) for head in header["skipped"]),
            record=CalibrationRecord.from_json(header["record"]),
            **{name: header[name] for name in _SCALARS},
        )

    def save(self, path: str | Path) -> None:
        """Write the whole plan to a file, or nothing."""
        container.write_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> StaticPlan:
        """Read a plan from a file. Raises ValueError, which names the file, if it is damaged or missing."""
        return cls.from_bytes(container.read_file(path, _KIND), source=str(path))

    def _header(self) -> dict[str, Any]:
        return {
            "heads": [
                {name: getattr(head, name) for name in _HEAD_SCALARS} | {"fft_error": head.pattern.fft_error}
                for head in self.heads
            ],
            "skipped": [dataclasses.asdict(head) for head in self.skipped],
            "record": self.record.to_json(),
            **{name: getattr(self, name) for name in _SCALARS},
        }

    def _tensors(self) -> dict[str, Tensor]:
        vectors = [head.pattern.vectors for head in self.heads] or [(torch.zeros(0), torch.zeros(0))]
        alpha_NT, rho_NT = (torch.stack(column) for column in zip(*vectors, strict=True))
        tensors = {"alpha_NT": alpha_NT, "rho_NT": rho_NT}
        if not self.heads:
            tensors = {name: torch.zeros(0, self.T_fit) for name in tensors}
        if matrices := [head.pattern.p_TT for head in self.heads if isinstance(head.pattern, DensePattern)]:
            tensors["p_NTT"] = torch.stack(matrices)
        return tensors


def _read_patterns(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[Pattern]:
    """Return the patterns of a file's heads. The tensors of pruned heads are zeros and are ignored."""
    errors = [head.get("fft_error") for head in header["heads"]]
    fits = [
        CompactPattern(alpha_T, rho_T, error)
        for alpha_T, rho_T, error in zip(tensors["alpha_NT"], tensors["rho_NT"], errors, strict=True)
    ]
    if "p_NTT" in tensors:
        return [DensePattern(p_TT, fit) for p_TT, fit in zip(tensors["p_NTT"], fits, strict=True)]
    if isinstance(CONTENTS.get(header["content"]), PrunedContent):
        return [PrunedPattern(header["T_fit"]) for _ in fits]
    return list(fits)


_PATTERN_TYPES: dict[type, type[CompactPattern | DensePattern | PrunedPattern]] = {
    CompactContent: CompactPattern,
    DenseContent: DensePattern,
    PrunedContent: PrunedPattern,
}
_HEAD_SCALARS = ("layer", "head", "score", "fit_kl", "rank", "step")
_SCALARS = ("step", "selector", "content", "rate", "T_fit")
