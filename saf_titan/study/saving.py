"""Checks that the runs of a study save checkpoints. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saf_titan.config import Problem

KEY = "checkpoint.enable"


def saving_problem(levels: Sequence[tuple[dict[str, Any], str]]) -> Problem | None:
    """Return a problem, at the place where the key is set, if a run would save no checkpoints; otherwise None.

    levels: sections of the run's configuration, each with its place for errors, such as "command line". The first level
        that sets the key counts.
    """
    section, _, name = KEY.partition(".")
    for settings, place in levels:
        if name in (keys := settings.get(section, {})):
            if keys[name] is False:
                message = "must be true: runs go on after a stop, and arms from their parent, with checkpoints"
                return Problem(place, KEY, "false", message)
            return None
    return None
