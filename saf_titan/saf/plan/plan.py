"""The plan of static heads: which heads are static, with which pattern, and why. Plain data, stored with the model.

Legend: N static heads, H static heads of one layer, T time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saf_titan.saf import container
from saf_titan.saf.calibrate.calibration import CalibrationRecord
from saf_titan.saf.fit.dense_memory import DENSE_CONTENTS

_KIND = "static_plan"
PLAN_VERSION = 1


@dataclass(frozen=True, eq=False)
class StaticHead:
    """One head replaced by the fixed pattern P[i, j] = exp(alpha[j] + rho[i - j]) / Z[i], or by the matrix `p_TT`."""

    layer: int
    head: int
    alpha_T: Tensor
    """Key weights, float32 (T_fit,), in the gauge of `compact.fix_gauge`."""
    rho_T: Tensor
    """Lag weights, float32 (T_fit,)."""
    score: float
    fit_kl: float
    """Mean KL of a row from the mean attention to the pattern, nats; 0 for a pattern that was not fitted."""
    rank: int
    """Place in the ranking of its event, from 0."""
    step: int
    """Training step at which the head became static."""
    fft_error: float | None = None
    """Certified error of float32 FFT mixing, as a share of the largest value row; see `ops.prepare_pattern`."""
    p_TT: Tensor | None = None
    """Of a dense content: the pattern itself, float32 (T_fit, T_fit). alpha and rho are then the compact fit to the
    head's mean attention, and describe the head alone."""


@dataclass(frozen=True)
class SkippedHead:
    """A head that ranked before the last chosen one and was not chosen."""

    layer: int
    head: int
    score: float
    fit_kl: float | None
    reason: str


@dataclass(frozen=True, eq=False)
class StaticPlan:
    """All static heads of a model, ascending by (layer, head), and how they were found."""

    heads: tuple[StaticHead, ...]
    skipped: tuple[SkippedHead, ...]
    """Of the last event."""
    step: int
    selector: str
    content: str
    rate: float
    T_fit: int
    """The longest sequence the patterns are defined for; a shorter one uses their beginning, exactly."""
    record: CalibrationRecord
    version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        slots = [(head.layer, head.head) for head in self.heads]
        if slots != sorted(set(slots)):
            raise ValueError(f"the heads of a plan must be ascending and each there once, got {slots}")
        for head in self.heads:
            for name, values_T in (("alpha", head.alpha_T), ("rho", head.rho_T)):
                if values_T.shape != (self.T_fit,) or values_T.dtype != torch.float32 or not values_T.isfinite().all():
                    raise ValueError(
                        f"{name} of L{head.layer}H{head.head} must be finite float32 of length T_fit = {self.T_fit}, "
                        f"got {values_T.dtype} {tuple(values_T.shape)}"
                    )
            if (head.p_TT is not None) != self.is_dense or (head.p_TT is not None and not self._fits(head.p_TT)):
                raise ValueError(
                    f"the pattern of L{head.layer}H{head.head}, content {self.content}, must be "
                    f"{f'causal float32 rows of length {self.T_fit} that sum to 1' if self.is_dense else 'compact'}"
                )

    @property
    def is_dense(self) -> bool:
        """Whether the patterns are matrices."""
        return self.content in DENSE_CONTENTS

    def _fits(self, p_TT: Tensor) -> bool:
        shape = (self.T_fit, self.T_fit)
        if p_TT.shape != shape or p_TT.dtype != torch.float32 or not (p_TT >= 0).all():
            return False
        return bool(p_TT.triu(1).sum() == 0 and ((p_TT.sum(1) - 1).abs() < 1e-4).all())

    @cached_property
    def digest(self) -> str:
        """sha256 of the content: equal digests mean equal plans."""
        return container.digest(self._header(), self._tensors())

    def layers(self) -> dict[int, tuple[tuple[int, ...], Tensor, Tensor]]:
        """Per layer with static heads: their numbers, ascending, alpha_HT and rho_HT."""
        table = {}
        for layer, group in groupby(self.heads, key=lambda head: head.layer):
            heads = tuple(group)
            alpha_HT, rho_HT = torch.stack([h.alpha_T for h in heads]), torch.stack([h.rho_T for h in heads])
            table[layer] = (tuple(h.head for h in heads), alpha_HT, rho_HT)
        return table

    def dense_patterns(self, layer: int) -> Tensor:
        """The matrices p_HTT of a layer's static heads, in the order of `layers`."""
        return torch.stack([h.p_TT for h in self.heads if h.layer == layer and h.p_TT is not None])

    def extended_by(self, later: StaticPlan) -> StaticPlan:
        """The plan after a later event added heads to this one (a ramp): everything but the heads is the later's.

        Raises ValueError if the fits differ in length, the contents differ, or a head is in both.
        """
        if self.T_fit != later.T_fit:
            raise ValueError(f"plans fitted to lengths {self.T_fit} and {later.T_fit} cannot be joined")
        if self.content != later.content:
            raise ValueError(
                f"plans of content {self.content!r} and {later.content!r} cannot be joined; keep "
                f"saf.content = {self.content!r}"
            )
        heads = tuple(sorted(self.heads + later.heads, key=lambda head: (head.layer, head.head)))
        return dataclasses.replace(later, heads=heads)

    def to_bytes(self) -> bytes:
        """The whole plan as a safetensors file with a JSON header."""
        return container.pack(_KIND, self.version, self._header(), self._tensors())

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str = "the data") -> StaticPlan:
        """Inverse of `to_bytes`. ValueError names `source` if it is damaged, edited or of an unknown version."""
        header, tensors = container.unpack(data, _KIND, PLAN_VERSION, source=source)
        dense = tensors.get("p_NTT", [None] * len(header["heads"]))
        patterns = zip(header["heads"], tensors["alpha_NT"], tensors["rho_NT"], dense, strict=True)
        return cls(
            heads=tuple(StaticHead(**head, alpha_T=a_T, rho_T=r_T, p_TT=p_TT) for head, a_T, r_T, p_TT in patterns),
            skipped=tuple(SkippedHead(**head) for head in header["skipped"]),
            record=CalibrationRecord.from_json(header["record"]),
            **{name: header[name] for name in _SCALARS},
        )

    def save(self, path: str | Path) -> None:
        """Write to a file, all or nothing."""
        container.write_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> StaticPlan:
        """Read from a file; ValueError names it if it is damaged or not there."""
        return cls.from_bytes(container.read_file(path, _KIND), source=str(path))

    def _header(self) -> dict[str, Any]:
        head_fields = [f.name for f in dataclasses.fields(StaticHead) if f.name not in ("alpha_T", "rho_T", "p_TT")]
        return {
            "heads": [{name: getattr(head, name) for name in head_fields} for head in self.heads],
            "skipped": [dataclasses.asdict(head) for head in self.skipped],
            "record": self.record.to_json(),
            **{name: getattr(self, name) for name in _SCALARS},
        }

    def _tensors(self) -> dict[str, Tensor]:
        empty = torch.zeros(0, self.T_fit)
        tensors = {
            "alpha_NT": torch.stack([head.alpha_T for head in self.heads]) if self.heads else empty,
            "rho_NT": torch.stack([head.rho_T for head in self.heads]) if self.heads else empty,
        }
        if matrices := [head.p_TT for head in self.heads if head.p_TT is not None]:
            tensors["p_NTT"] = torch.stack(matrices)
        return tensors


_SCALARS = ("step", "selector", "content", "rate", "T_fit")
