"""The state of a freeze beside its plan, kept in checkpoints: of the schedule, the selector and trained patterns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from saf_titan.saf import container

_KIND, _VERSION = "freeze_state", 2
_AVERAGE, _PATTERNS = "gradient.average_LH", "patterns."


@dataclass(frozen=True)
class FreezeState:
    """The state dicts of the three parts; a part without state is empty."""

    schedule: dict[str, Any] = field(default_factory=dict)
    gradient: dict[str, Any] = field(default_factory=dict)
    """Of a `GradientEMA`."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Of a `PatternTraining`."""

    def to_bytes(self) -> bytes | None:
        """A safetensors file with a JSON header; None if there is nothing in it."""
        header: dict[str, object] = {}
        tensors = {_PATTERNS + name: value for name, value in self.moments.items()}
        if self.schedule:
            header["schedule"] = self.schedule
        if self.gradient:
            header["gradient"] = {name: value for name, value in self.gradient.items() if name != "average_LH"}
            tensors[_AVERAGE] = self.gradient["average_LH"]
        return container.pack(_KIND, _VERSION, header, tensors) if header or tensors else None

    @classmethod
    def from_bytes(cls, data: bytes | None) -> FreezeState:
        """Inverse of `to_bytes`. ValueError if it is damaged or of an unknown version."""
        if data is None:
            return cls()
        header, tensors = container.unpack(data, _KIND, _VERSION, source="the freeze state of the checkpoint")
        return cls(
            schedule=header.get("schedule", {}),
            gradient=header["gradient"] | {"average_LH": tensors[_AVERAGE]} if "gradient" in header else {},
            moments={
                name.removeprefix(_PATTERNS): value for name, value in tensors.items() if name.startswith(_PATTERNS)
            },
        )
