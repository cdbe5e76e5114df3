"""Whether the runs of a study save checkpoints, which they must; said once, where the key stands. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saf_titan.config import Problem

KEY = "checkpoint.enable"


def saving_problem(levels: Sequence[tuple[dict[str, Any], str]]) -> Problem | None:
    """Return the problem of a run that would save no checkpoint; None if it saves some.

    levels: sections of the run's configuration, each with the place that they are from; the first one that has the key
        decides.
    """
    section, _, name = KEY.partition(".")
    for settings, place in levels:
        if name in (keys := settings.get(section, {})):
            if keys[name] is False:
                message = "must be true: runs go on after a stop, and arms from their parent, with checkpoints"
                return Problem(place, KEY, "false", message)
            return None
    return None
