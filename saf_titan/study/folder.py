"""The folder of a study: the name of its study, and whether a folder may hold a study. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from saf_titan.config import COMMAND_LINE, Problem
from saf_titan.report.rows import METRICS_FILE
from saf_titan.study.launch import CONFIG_FILE

RESULTS_FILE = "results.json"
"""Name of the file with everything that a study has measured."""

_NAME_FILE = ".study"
"""Name of the file that holds the name of the study; the first command that trains writes it."""


def claim(out: Path, name: str) -> None:
    """Make the folder of a study unless it exists, and write the name of the study into it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / _NAME_FILE).write_text(f"{name}\n", encoding="utf-8")


def folder_problems(out: Path, name: str) -> Iterator[Problem]:
    """Yield a problem if `out` cannot be the folder of the study `name`, because it belongs to something else.

    A folder must not be, or lie in, a file, the folder of a run or the folder of another study. A new folder, an empty
    one, and the study's own are allowed.
    """
    resolved = out.resolve()
    message = None
    for folder in (resolved, *resolved.parents):
        is_itself = folder == resolved
        if folder.exists() and not folder.is_dir():
            message = "is a file" if is_itself else f"lies below {folder}, which is a file"
        elif _is_run(folder):
            message = "is the folder of a run" if is_itself else f"lies in {folder}, which is the folder of a run"
        elif (other := _study_of(folder)) is not None and not (is_itself and other == name):
            message = f"is the folder of the study {other}" if is_itself else f"lies in the folder of the study {other}"
        if message is not None:
            yield Problem(COMMAND_LINE, "--out", str(out), f"{message}; give a folder of its own")
            return


def _is_run(folder: Path) -> bool:
    return (folder / METRICS_FILE).is_file() or (folder / CONFIG_FILE).is_file()


def _study_of(folder: Path) -> str | None:
    """Return the name of the study whose folder this is; None if it is not the folder of a study."""
    if (folder / _NAME_FILE).is_file():
        return (folder / _NAME_FILE).read_text(encoding="utf-8", errors="replace").strip()
    try:
        # earlier versions wrote the name into the results alone
        results = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(results["study"]) if isinstance(results, dict) and "study" in results else None
