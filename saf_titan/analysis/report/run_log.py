"""What a run left in its folder, read so that a half-written or resumed run still gives a clear picture."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saf_titan.config import ConfigError, RunConfig, load_config

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """The rows of `metrics.jsonl` that belong to the final course of the run, by kind and in order of steps."""

    folder: Path
    config: RunConfig | None
    """None where config.toml is missing or damaged."""
    train: list[Row] = field(default_factory=list)
    validations: list[Row] = field(default_factory=list)
    freezes: list[Row] = field(default_factory=list)
    sessions: list[Row] = field(default_factory=list)
    """Rows "start" and "resume", in order of time."""

    @property
    def last_step(self) -> int:
        """The last step that is logged; 0 before the first."""
        return max((row["step"] for row in self.train), default=0)

    @property
    def world_size(self) -> int | None:
        """Ranks of the last session."""
        return self.sessions[-1].get("world_size") if self.sessions else None


def read_run(folder: Path) -> RunLog:
    """Read a run's folder.

    A resumed run goes back to a checkpoint and writes some steps again: what an earlier session logged beyond that
    step is dropped, and of rows for the same step the later one counts. Lines that are no JSON object with a kind and a
    step (the last one, after a kill) are passed over.

    Raises:
        ValueError: the folder has no metrics.jsonl.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); a run's folder holds one") from None
    rows: dict[tuple[str, ...], Row] = {}
    sessions: list[Row] = []
    for row in filter(None, map(_parse, lines)):
        if row["kind"] in ("start", "resume"):
            rows = {key: old for key, old in rows.items() if old["step"] <= row["step"]}
            sessions.append(row)
        else:
            row["world_size"] = sessions[-1].get("world_size") if sessions else None
            rows[row["kind"], str(row["step"]), row.get("phase", "")] = row
    ordered = sorted(rows.values(), key=lambda row: row["step"])
    return RunLog(
        folder=folder,
        config=_read_config(folder),
        train=[row for row in ordered if row["kind"] == "train" and _has_numbers(row, "loss")],
        validations=[row for row in ordered if row["kind"] == "validation" and _has_numbers(row, "loss")],
        freezes=[row for row in ordered if row["kind"] == "freeze"],
        sessions=sessions,
    )


def _parse(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
        return None
    return row


def _has_numbers(row: Row, *names: str) -> bool:
    return all(isinstance(row.get(name), int | float) for name in names)


def _read_config(folder: Path) -> RunConfig | None:
    try:
        return load_config(folder / "config.toml", [])
    except ConfigError:
        return None
