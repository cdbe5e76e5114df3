"""Compares the configuration of a resumed run with the ``config.toml`` in its folder, key by key.

This happens before anything is built. It also decides whether the run has anything left to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saf_titan.config import RunConfig

FIXED: Mapping[str, str] = {
    "model": "the saved weights are of the old model",
    "data": "the sequences would be different",
    "data.seed": "the windows would come in another order",
    "data.shuffle": "the windows would come in another order",
    "data.vocab_size": "the ids would mean other tokens",
    "training.seq_len": "the windows would begin at other tokens",
    "training.dtype": "weights and moments are saved in the old type",
    "optimizer.name": "the saved moments are of the old optimizer",
    "debug.seed": "the run has already used the old seed",
}
"""Keys, or whole sections, that must not change when a run is resumed, with the reason."""

MAY_CHANGE: frozenset[str] = frozenset(
    {
        "dump_folder",
        "model.attention_backend",
        # the files may move: the loader refuses other data by their digest
        "data.path",
        "data.verify",
        "training",
        "optimizer",
        "lr_scheduler",
        "circuits",
        "saf",
        "validator",
        "checkpoint",
        "metrics",
        "profiler",
        "parallelism",
        "activation_checkpoint",
        "compile",
        "comm",
        "debug.deterministic",
        "debug.print_config",
        "report",
    }
)
"""Keys, or whole sections, that may change when a run is resumed. An entry for a key overrides that of its section."""


@dataclass(frozen=True)
class Change:
    """One key whose value differs from the saved configuration of the run."""

    key: str
    before: Any
    now: Any

    @property
    def reason_against(self) -> str | None:
        """Why a run cannot be resumed with another value; None if it can."""
        section = self.key.partition(".")[0]
        if self.key in MAY_CHANGE:
            return None
        return FIXED.get(self.key) or (None if section in MAY_CHANGE else FIXED[section])

    def __str__(self) -> str:
        return f"{self.key} was {_shown(self.before)} and is {_shown(self.now)}"


def changes(before: RunConfig, now: RunConfig) -> list[Change]:
    """Return the keys whose values differ, in the order of the schema; defaults of the flavor are filled in first."""
    old, new = dict(values(before)), dict(values(now))
    return [Change(key, old[key], new[key]) for key in new if old[key] != new[key] and key != "dump_folder"]


def values(run: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yield every key of a configuration with its value; a 0 that stands for the flavor's size becomes that size."""
    for field in dataclasses.fields(run):
        section = getattr(run, field.name)
        if not dataclasses.is_dataclass(section):
            yield field.name, section
            continue
        for item in dataclasses.fields(section):
            value = getattr(section, item.name)
            if field.name == "model" and not value:
                value = getattr(run.shape, item.name, value)
            yield f"{field.name}.{item.name}", value


def require_same_run(found: list[Change], folder: Path) -> None:
    """Raise ValueError if keys that must not change have changed; the message lists them with the reasons."""
    wrong = [f"{change} ({change.reason_against})" for change in found if change.reason_against]
    if wrong:
        raise ValueError(
            f"{folder} holds another run: {'; '.join(wrong)}. Start a new one with another --dump_folder, or go on "
            f"with the old values"
        )


def nothing_to_do(
    run: RunConfig, found: list[Change], newest_step: int, *, budget_is_spent: bool, freeze_is_due: bool = False
) -> str | None:
    """Return why a run has nothing left to do, as text; None if it goes on.

    Args:
        newest_step: step of the newest complete checkpoint.
        budget_is_spent: the run has used up its `saf.matched_seconds`.
        freeze_is_due: the run has ended, but more heads are to be frozen after its last step.
    """
    if freeze_is_due:
        return None
    if run.saf.matched_seconds:
        if not budget_is_spent:
            return None
        text = f"Nothing to do: the run has used its {run.saf.matched_seconds:g} s; raise saf.matched_seconds to go on."
    elif newest_step < run.training.steps:
        return None
    else:
        text = (
            f"Nothing to do: the run is at step {newest_step} of {run.training.steps}; raise training.steps to go on."
        )
    if found:
        text += f" Nothing was changed, although {'; '.join(map(str, found))}."
    return text


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
