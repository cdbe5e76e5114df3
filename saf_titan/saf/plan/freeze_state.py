"""State that checkpoints keep beside the plan: that of the schedule, the gradient selector and trained patterns."""

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
    """State of a `GradientEMA`."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Optimizer state of a `PatternTraining`."""

    def to_bytes(self) -> bytes | None:
        """Return the bytes of a safetensors file with a JSON header; None if all three parts are empty."""
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
        """Undo `to_bytes`. Raises ValueError if the data are damaged or of an unknown version."""
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
