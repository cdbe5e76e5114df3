"""Read the log and the configuration of a run from its folder, also of an unfinished or a resumed run."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from saf_titan.config import ConfigError, RunConfig, load_config
from saf_titan.report.row_lines import read_row
from saf_titan.report.rows import (
    METRICS_FILE,
    AccuracyRow,
    CircuitsRow,
    FinishRow,
    FreezeRow,
    FreezeUndoneRow,
    RelevanceRow,
    ResumeRow,
    StartRow,
    TrainRow,
    UnknownRow,
    ValidationRow,
)

Session = StartRow | ResumeRow
"""The start of a process group that worked on the run."""

Key = TypeVar("Key")
RowOfStep = TypeVar(
    "RowOfStep", bound=TrainRow | ValidationRow | AccuracyRow | RelevanceRow | CircuitsRow | FreezeRow | FreezeUndoneRow
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """The rows of `metrics.jsonl` that belong to the final course of the run, in order of steps."""

    folder: Path
    config: RunConfig | None = None
    """None where config.toml is missing or damaged."""
    train: list[TrainRow] = field(default_factory=list)
    validations: list[ValidationRow] = field(default_factory=list)
    accuracies: list[AccuracyRow] = field(default_factory=list)
    relevances: list[RelevanceRow] = field(default_factory=list)
    circuits: list[CircuitsRow] = field(default_factory=list)
    freezes: list[FreezeRow] = field(default_factory=list)
    undone: list[FreezeUndoneRow] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    """In order of time."""
    finish: FinishRow | None = None
    """The row that ends the run; None if the run has not reached its end, or was continued after it."""
    unknown: list[UnknownRow] = field(default_factory=list)
    """Rows of kinds that this version does not know, in order of time."""
    damaged: list[str] = field(default_factory=list)
    """Each damaged line of the file, as "line 12: it is no JSON"."""

    @property
    def last_step(self) -> int:
        """The last step that is logged; 0 before the first."""
        steps = [row.step for row in self.train] + [row.step for row in self.validations]
        return max([0, *steps, *([self.finish.step] if self.finish else [])])

    @property
    def matched_seconds(self) -> float:
        """The seconds that the run was to train for; 0 if it was to train for a number of steps."""
        return self.config.saf.matched_seconds if self.config else 0.0

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: the trainer wrote a `finish` row.

        Runs of older versions have no such row. They are finished if their last step is logged or its checkpoint is
        there, unless they were to train for a time, because then the number of steps was not known before.
        """
        if self.finish is not None:
            return True
        if self.config is None or self.matched_seconds:
            return False
        steps = self.config.training.steps
        return self.last_step >= steps or (self.folder / self.config.checkpoint.folder / f"step-{steps}").is_dir()

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the last session."""
        return self.sessions[-1].world_size if self.sessions else None

    def world_size_of(self, step: int) -> int | None:
        """Number of ranks that did a step: those of the last session that began before the step."""
        return next((session.world_size for session in reversed(self.sessions) if session.step < step), None)


def read_run(folder: Path) -> RunLog:
    """Read a run's folder.

    A resumed run goes back to a checkpoint and writes some steps again. So what an earlier session logged beyond that
    step is dropped, and of two rows for the same step the later one counts. Damaged lines (the last line, after a kill)
    are listed in `damaged`.

    Raises:
        ValueError: the folder does not exist, or its metrics.jsonl is missing or cannot be read.
    """
    train: dict[int, TrainRow] = {}
    validations: dict[tuple[int, str], ValidationRow] = {}
    accuracies: dict[tuple[int, str, int, int], AccuracyRow] = {}
    relevances: dict[tuple[int, str, int, int], RelevanceRow] = {}
    circuits: dict[int, CircuitsRow] = {}
    freezes: dict[int, FreezeRow | FreezeUndoneRow] = {}
    sessions: list[Session] = []
    finish: FinishRow | None = None
    unknown: list[UnknownRow] = []
    damaged: list[str] = []
    for number, line in enumerate(_lines(folder), start=1):
        if not line.strip():
            continue
        try:
            row = read_row(line)
        except ValueError as error:
            damaged.append(f"line {number}: {error}")
            continue
        match row:
            case TrainRow():
                train[row.step] = row
            case ValidationRow():
                validations[row.step, row.phase] = row
            case AccuracyRow():
                accuracies[row.step, row.phase, row.length, row.pairs] = row
            case RelevanceRow():
                relevances[row.step, row.phase, row.length, row.pairs] = row
            case CircuitsRow():
                circuits[row.step] = row
            case FreezeRow() | FreezeUndoneRow():
                freezes[row.step] = row
            case FinishRow():
                finish = row
            case StartRow() | ResumeRow():
                sessions.append(row)
                train = _up_to(row.step, train)
                validations = _up_to(row.step, validations)
                accuracies = _up_to(row.step, accuracies)
                relevances = _up_to(row.step, relevances)
                circuits = _up_to(row.step, circuits)
                freezes = _up_to(row.step, freezes)
                finish = None
            case UnknownRow():
                unknown.append(row)
    in_order = sorted(freezes.values(), key=lambda row: row.step)
    return RunLog(
        folder=folder,
        config=_read_config(folder),
        train=sorted(train.values(), key=lambda row: row.step),
        # the sort keeps the order of writing within a step: before_freeze comes before after_freeze
        validations=sorted(validations.values(), key=lambda row: row.step),
        accuracies=sorted(accuracies.values(), key=lambda row: row.step),
        relevances=sorted(relevances.values(), key=lambda row: row.step),
        circuits=sorted(circuits.values(), key=lambda row: row.step),
        freezes=[row for row in in_order if isinstance(row, FreezeRow)],
        undone=[row for row in in_order if isinstance(row, FreezeUndoneRow)],
        sessions=sessions,
        finish=finish,
        unknown=unknown,
        damaged=damaged,
    )


def _lines(folder: Path) -> list[str]:
    """Return the lines of a run's metrics.jsonl; bytes outside of UTF-8 are replaced, which damages only their line."""
    path = folder / METRICS_FILE
    remedy = "give the dump_folder of a training run"
    try:
        if not folder.is_dir():
            raise ValueError(f"{folder}: {'it is no folder' if folder.exists() else 'no such folder'}; {remedy}")
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file, so {folder} is not the folder of a run; {remedy}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); make it readable, or {remedy}") from None


def _up_to(step: int, rows: dict[Key, RowOfStep]) -> dict[Key, RowOfStep]:
    return {key: row for key, row in rows.items() if row.step <= step}


def _read_config(folder: Path) -> RunConfig | None:
    try:
        return load_config(folder / "config.toml", [])
    except ConfigError:
        return None


def joined(earlier: RunLog, later: RunLog) -> RunLog:
    """Return the log of a run together with that of the earlier run from whose last checkpoint it started.

    The seconds of the later run are counted on from the end of the earlier run.
    """
    start = earlier.finish.seconds if earlier.finish else math.nan
    return replace(
        later,
        train=[*earlier.train, *(replace(row, seconds=start + row.seconds) for row in later.train)],
        validations=[*earlier.validations, *later.validations],
        accuracies=[*earlier.accuracies, *later.accuracies],
        relevances=[*earlier.relevances, *later.relevances],
        circuits=[*earlier.circuits, *later.circuits],
        freezes=[*earlier.freezes, *later.freezes],
        undone=[*earlier.undone, *later.undone],
        sessions=[*earlier.sessions, *later.sessions],
        finish=later.finish and replace(later.finish, seconds=start + later.finish.seconds),
    )
