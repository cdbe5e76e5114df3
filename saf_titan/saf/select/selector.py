"""The type of a selector: its name, what it measures beside the statistics, and the order in which heads are tried.

To add one, write one file in `selectors/` that assigns a `Selector` to the name SELECTOR. Such a file must import torch
inside its functions only, because the configuration reads the names of all selectors before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.heads.names import Head
    from saf_titan.saf.calibrate.calibration import Calibration
    from saf_titan.saf.select.probe import Probe

GROUPS = ("attention", "training", "output", "loss", "comparison")
"""What a selector looks at: attention over sequences, gradients of training steps, what a head adds to the residual
stream, the loss; or nothing, for comparison."""


@dataclass(frozen=True)
class Ranking:
    """The order in which heads are tried."""

    name: str
    """Name of the selector."""
    scores_LH: Tensor
    """The score of each head, float64 (L, H), lower = more static; NaN for a head that is static already."""
    heads: Sequence[Head]
    matched: Ranking | None = None
    """Take from each layer as many heads as this other ranking would give it."""
    is_list: bool = False
    """Whether the user named the heads: then all of them become static, or none does."""


@dataclass(frozen=True, kw_only=True)
class Selector:
    """One way to choose the heads that become static."""

    name: str
    group: str
    """One of `GROUPS`."""
    doc: str
    """One sentence for help and guides."""
    reason: str
    """Why a head was chosen, as the report says it: "these heads were chosen because ..."."""
    measure: Callable[[Probe[Any]], Mapping[str, Tensor]] | None = None
    """Measures scores (L, H) that the statistics of queries and keys do not give, by name; None if they suffice."""
    draws: bool = False
    """Whether the ranking depends on the setting `seed`."""
    watches_gradients: bool = False
    """Whether the gradients of every training step are averaged for this selector; see `gradient_ema`."""
    rank: Callable[[Calibration, SelectionSettings], Ranking] | None = None
    """Makes the ranking; None ranks by the score of the selector's own name."""


class SelectionSettings(Protocol):
    """The settings that a ranking may depend on; `plan.settings.PlanSettings` has them."""

    @property
    def seed(self) -> int: ...

    @property
    def heads(self) -> tuple[str, ...]: ...

    @property
    def exclude_layers(self) -> tuple[int, ...]: ...
