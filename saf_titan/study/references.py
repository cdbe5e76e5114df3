"""Checks whether an arm can take heads or seconds from another arm. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saf_titan.config import Problem
from saf_titan.study.runs import StudyRun


def reference_problems(run: StudyRun, place: str, own: dict[str, Any], *, source_freezes: bool) -> Iterator[Problem]:
    """Yield a problem for each reference that a run cannot follow.

    Args:
        place: the place of the arm in the study file, for errors.
        own: keys of [saf] that the arm sets itself.
        source_freezes: whether the run that `heads_of` names freezes heads.
    """
    source = run.references.get("heads_of")
    if source is not None and not source_freezes:
        message = "freezes no heads; name an arm that sets a key of [saf]"
        yield Problem(place, "heads_of", f'"{source.name}"', message)
    for key in ("selector", "heads"):
        if source is not None and key in own:
            message = f'has no effect beside heads_of = "{source.name}", which gives the heads; take one away'
            yield Problem(place, f"saf.{key}", repr(own[key]), message)
    other = run.references.get("seconds_of")
    if other is not None and other.first_step != run.first_step:
        message = f"begins after step {other.first_step} and this arm after step {run.first_step}; "
        yield Problem(place, "seconds_of", f'"{other.name}"', f"{message}both must branch at the same step")
