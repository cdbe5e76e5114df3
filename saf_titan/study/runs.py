"""A run of a study, and what other arms take from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from saf_titan.study.schema import Arm


@dataclass(frozen=True)
class Found:
    """What the arms that refer to a finished run take from it."""

    heads: tuple[str, ...]
    """Static heads at the end, in the order in which they were chosen."""
    seconds: float
    """Wall time since the branch."""
    step: int
    """Number of its last step."""


@dataclass(frozen=True, eq=False)
class StudyRun:
    """One training run of a study."""

    name: str
    """Name of the arm, or "parent to step N"."""
    seed: int
    folder: Path
    arm: Arm | None = None
    """None for a parent."""
    first_step: int = 0
    """Number of steps that were done before this run; 0 for a run that starts at step 0."""
    last_step: int = 0
    """The step at which a parent ends and arms branch; 0 for an arm, whose configuration tells its end."""
    parent: StudyRun | None = None
    """The run of this study whose last checkpoint this run starts from; None if there is none."""
    checkpoint: Path | None = None
    """The checkpoint that this run starts from, or with `takes_weights_alone` also the folder of a run, which stands
    for its newest checkpoint. None for random initial weights."""
    takes_weights_alone: bool = False
    """Start a new run with the weights and static heads of `checkpoint`, which need not exist yet."""
    references: dict[str, StudyRun] = field(default_factory=dict)
    """Key "heads_of", "seconds_of" or "tokens_of" -> the run that the arm refers to."""

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def needs(self) -> tuple[StudyRun, ...]:
        """The runs that must have finished before this one starts."""
        return (*filter(None, [self.parent]), *self.references.values())

    @property
    def evaluation(self) -> Path:
        """Folder of the evaluation: a run that measures the held-out loss after the clock of this run has stopped."""
        return self.folder / "evaluation"


Known = Callable[[StudyRun], Found | None]
"""A function that returns what a run has found; None if the run has not finished."""
