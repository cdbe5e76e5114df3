"""Errors of a configuration: all of its faults are reported together."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: its place, the value as the user wrote it, and what is allowed."""

    source: str
    """File, or "command line"."""
    key: str
    """Dotted key, "training.steps"; empty when the file as a whole is meant."""
    value: str
    """The value as TOML text; empty when there is none to show."""
    message: str
    """What is wrong, what is allowed, what to do."""

    def __str__(self) -> str:
        section, _, name = self.key.rpartition(".")
        place = f"[{section}] {name}" if section else name
        shown = f"{place} = {self.value}" if self.value else place
        return _printable(": ".join(part for part in (self.source, shown, self.message) if part))


class Conflict(NamedTuple):
    """Two or more keys whose values cannot be combined. The error is reported at the first key."""

    keys: tuple[str, ...]
    message: str


class ConfigError(ValueError):
    """All faults of a configuration at once, one a line; `problems` holds them one by one."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def _printable(text: str) -> str:
    """Return the text with escapes for line breaks and other characters that cannot be printed; a key may hold some."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `word`, ignoring case; None when no name is close."""
    by_folded = {name.casefold(): name for name in known}
    match = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[match[0]] if match else None
