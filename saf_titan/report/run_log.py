"""What a run left in its folder, read so that a half-written or resumed run still gives a clear picture."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from saf_titan.config import ConfigError, RunConfig, load_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """The start of a process group that worked on the run."""

    step: int
    """Optimizer steps done before: 0, or the checkpoint it went on from."""
    world_size: int | None
    resumed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPoint:
    """What is logged of training every few steps."""

    step: int
    loss: float
    """Nats per token; not finite if the run diverged."""
    tokens: float | None
    """Tokens seen so far."""
    step_seconds: float | None
    """Mean over the steps since the point before."""
    world_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """One pass over the validation windows."""

    step: int
    loss: float
    phase: str
    """scheduled, before_freeze, after_freeze or final."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Freeze:
    """Heads became static after `step` optimizer steps."""

    step: int
    folder: str
    """Where plan and statistics lie, relative to the run's folder."""
    seconds: dict[str, float]
    """What each part of the freeze took."""
    world_size: int | None


Key = TypeVar("Key")
Row = TypeVar("Row", TrainPoint, Validation, Freeze)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """The rows of `metrics.jsonl` that belong to the final course of the run, in order of steps."""

    folder: Path
    config: RunConfig | None
    """None where config.toml is missing or damaged."""
    train: list[TrainPoint] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    """In order of time."""

    @property
    def last_step(self) -> int:
        """The last step that is logged; 0 before the first."""
        steps = [point.step for point in self.train] + [point.step for point in self.validations]
        return max(steps, default=0)

    @property
    def finished(self) -> bool:
        """The run did all its steps: the last one is logged, or its checkpoint is there."""
        if self.config is None:
            return False
        steps = self.config.training.steps
        return self.last_step >= steps or (self.folder / self.config.checkpoint.folder / f"step-{steps}").is_dir()

    @property
    def world_size(self) -> int | None:
        """Ranks of the last session."""
        return self.sessions[-1].world_size if self.sessions else None


def read_run(folder: Path) -> RunLog:
    """Read a run's folder.

    A resumed run goes back to a checkpoint and writes some steps again: what an earlier session logged beyond that
    step is dropped, and of rows for the same step the later one counts. Lines that are no row of a known kind (the last
    one, after a kill) are passed over.

    Raises:
        ValueError: the folder has no metrics.jsonl.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); a run's folder holds one") from None
    sessions: list[Session] = []
    train: dict[int, TrainPoint] = {}
    validations: dict[tuple[int, str], Validation] = {}
    freezes: dict[int, Freeze] = {}
    for line in lines:
        row = _parse(line, sessions[-1].world_size if sessions else None)
        match row:
            case TrainPoint():
                train[row.step] = row
            case Validation():
                validations[row.step, row.phase] = row
            case Freeze():
                freezes[row.step] = row
            case Session():
                sessions.append(row)
                train = _up_to(row.step, train)
                validations = _up_to(row.step, validations)
                freezes = _up_to(row.step, freezes)
    return RunLog(
        folder=folder,
        config=_read_config(folder),
        train=sorted(train.values(), key=lambda point: point.step),
        # of equal steps the order of writing stays: before a freeze comes before after it
        validations=sorted(validations.values(), key=lambda point: point.step),
        freezes=sorted(freezes.values(), key=lambda freeze: freeze.step),
        sessions=sessions,
    )


def _up_to(step: int, rows: dict[Key, Row]) -> dict[Key, Row]:
    return {key: row for key, row in rows.items() if row.step <= step}


def _parse(line: str, world_size: int | None) -> Session | TrainPoint | Validation | Freeze | None:
    """A line as a row written by a session of `world_size` ranks, or None if it is no sound row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    step, loss = row.get("step"), _number(row.get("loss"))
    if type(step) is not int or not 0 <= step < 2**53:
        return None
    match row.get("kind"):
        case "start" | "resume" as kind:
            ranks = row.get("world_size")
            return Session(step=step, world_size=ranks if type(ranks) is int else None, resumed=kind == "resume")
        case "train" if loss is not None:
            tokens, seconds = _finite(row.get("tokens")), _finite(row.get("step_seconds"))
            return TrainPoint(step=step, loss=loss, tokens=tokens, step_seconds=seconds, world_size=world_size)
        case "validation" if loss is not None:
            return Validation(step=step, loss=loss, phase=str(row.get("phase")))
        case "freeze":
            parts = row.get("seconds")
            finite = {name: _finite(value) for name, value in parts.items()} if isinstance(parts, dict) else {}
            return Freeze(
                step=step,
                folder=str(row.get("folder")),
                seconds={name: value for name, value in finite.items() if value is not None},
                world_size=world_size,
            )
    return None


def _number(value: Any) -> float | None:
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _read_config(folder: Path) -> RunConfig | None:
    try:
        return load_config(folder / "config.toml", [])
    except ConfigError:
        return None
