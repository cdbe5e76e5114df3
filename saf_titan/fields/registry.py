"""Registries: folders of modules with one entry each, so that one new file adds an entry.

Every module of such a folder assigns its entry to the same name (``SELECTOR``, ``CONTENT``). Help, checks, command
lines and the tables of the guides are made from the entries. The modules must not import torch at the top, because the
configuration imports them to read their names.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Protocol, TypeVar


class Entry(Protocol):
    """The attributes that every entry of a registry has."""

    @property
    def name(self) -> str:
        """The name that a user writes."""

    @property
    def group(self) -> str:
        """The heading under which help lists the entry."""

    @property
    def doc(self) -> str:
        """One sentence about the entry, for help and guides."""


E = TypeVar("E", bound=Entry)


def collect(package: ModuleType, attribute: str, entry_type: type[E], groups: Sequence[str]) -> Mapping[str, E]:
    """Import every module of ``package`` and return their entries by name, ordered by group and then by name.

    Args:
        attribute: the name to which each module assigns its entry.
        groups: all groups, in the order of the result.
    """
    entries: dict[str, E] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        entry = getattr(module, attribute)
        assert isinstance(entry, entry_type), f"{module.__name__}.{attribute} must be a {entry_type.__name__}"
        assert entry.name not in entries, f"two modules of {package.__name__} are named {entry.name}"
        entries[entry.name] = entry
    ordered = sorted(entries.values(), key=lambda entry: (groups.index(entry.group), entry.name))
    return MappingProxyType({entry.name: entry for entry in ordered})


def markdown_table(entries: Mapping[str, Entry], title: str) -> str:
    """Return the entries as the table of a guide: name, group, sentence."""
    rows = [f"| `{entry.name}` | {entry.group} | {entry.doc} |" for entry in entries.values()]
    return "\n".join([f"| {title} | group | what it is |", "|---|---|---|", *rows])
