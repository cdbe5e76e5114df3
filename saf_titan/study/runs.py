"""One run of a study, and what it tells the arms that refer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from saf_titan.study.schema import Arm


@dataclass(frozen=True)
class Found:
    """What a finished run tells the arms that refer to it."""

    heads: tuple[str, ...]
    """Static heads at the end, in the order in which they were chosen."""
    seconds: float
    """Wall time since the branch."""
    step: int
    """The last step."""


@dataclass(frozen=True, eq=False)
class StudyRun:
    """One training run of a study."""

    name: str
    """The arm, or "parent to step N"."""
    seed: int
    folder: Path
    arm: Arm | None = None
    """None for a parent."""
    first_step: int = 0
    """Steps that were done before this run; 0: it starts from initial weights."""
    last_step: int = 0
    """Of a parent: where arms branch from. 0 for an arm, which ends where its configuration says."""
    parent: StudyRun | None = None
    """The run whose last checkpoint this one starts from, if the study trains it."""
    checkpoint: Path | None = None
    """That checkpoint, or the run or checkpoint that gives the weights alone; None for random weights."""
    takes_weights_alone: bool = False
    """A new run with the weights and static heads of `checkpoint`, which need not exist yet."""
    references: dict[str, StudyRun] = field(default_factory=dict)
    """heads_of, seconds_of, tokens_of -> the run that is meant."""

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def needs(self) -> tuple[StudyRun, ...]:
        """Runs that must have finished before this one starts."""
        return (*filter(None, [self.parent]), *self.references.values())

    @property
    def evaluation(self) -> Path:
        """Folder of the run that only looks at held-out data, after the clock of this one has stopped."""
        return self.folder / "evaluation"


Known = Callable[[StudyRun], Found | None]
"""What is known of a run; None where it has not finished."""
