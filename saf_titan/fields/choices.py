"""The names of a registry that a field accepts, attached to the field with `typing.Annotated`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saf_titan.fields.registry import Entry


@dataclass(frozen=True)
class OneOf:
    """The names of a registry, with the sentence that documents each."""

    docs: Mapping[str, str]

    @classmethod
    def entries(cls, entries: Mapping[str, Entry]) -> OneOf:
        """Return the choice among all entries of a registry, in its order."""
        return cls({name: f"{entry.group}: {entry.doc}" for name, entry in entries.items()})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.docs)
