"""The type of a pattern content: its name, and how it makes the pattern of a static head.

To add one, write one file in `contents/` that assigns a `CompactContent` or a `DenseContent` to the name CONTENT. Such
a file must import torch inside its functions only, because the configuration reads the names of all contents before
torch is loaded.

Legend: N heads, B sequences, T time, R rows of a block, J keys that they see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from saf_titan.heads.names import Head
    from saf_titan.saf.calibrate.calibration import Calibration

GROUPS = ("two vectors", "matrix", "none")
"""What takes the place of a head's attention: two length-T vectors, a T x T matrix, or nothing."""

DIRICHLET_SCALE = 16.0
"""The published factor on the precision of content dirichlet."""

RowMaker: TypeAlias = "Callable[..., Tensor]"
"""Makes rows of a dense pattern; see `DenseContent.rows`."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What takes the place of a static head's attention."""

    name: str
    doc: str
    """One sentence for help and guides."""
    replacement: str
    """What took the heads' place, as the report says it: "their attention is replaced by ..."."""
    draws: bool = False
    """Whether the pattern depends on the setting `seed`."""
    group: ClassVar[str]
    """One of `GROUPS`."""
    is_compact: ClassVar[bool] = False
    """Whether the pattern is two vectors: it can then be trained further, and weights can be compensated for it."""
    is_fitted: ClassVar[bool] = True
    """Whether a head is skipped if the compact pattern does not fit its mean attention within `max_fit_kl`."""


@dataclass(frozen=True, kw_only=True)
class CompactContent(Content):
    """A pattern P[i, j] = exp(alpha[j] + rho[i - j]) / Z[i]."""

    group: ClassVar[str] = "two vectors"
    is_compact: ClassVar[bool] = True
    parameters: Callable[[Calibration, Sequence[Head], int], tuple[Tensor, Tensor]] | None = None
    """Makes alpha_NT and rho_NT, float64, of N (layer, head) slots; the last argument is the seed. None: the pattern is
    the fit to the head's mean attention, which the check against `max_fit_kl` has made already."""


@dataclass(frozen=True, kw_only=True)
class DenseContent(Content):
    """A pattern that two vectors cannot describe: a T x T matrix for each head, from another forward of each batch."""

    group: ClassVar[str] = "matrix"
    rows: RowMaker
    """Makes rows p_RJ of a head's pattern from its scores_BRJ, its attention probs_BRJ, hidden_RJ (true where the
    query does not see the key) and the head's own random generator."""
    takes_scale: bool = False
    """`rows` takes the setting `dirichlet_scale` as the keyword `scale`."""


@dataclass(frozen=True, kw_only=True)
class PrunedContent(Content):
    """No pattern at all: the head is removed, values and output included."""

    group: ClassVar[str] = "none"
    is_fitted: ClassVar[bool] = False
