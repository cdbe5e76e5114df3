"""Run forwards with hooks in place, and remove the hooks afterwards, also after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

Batch = TypeVar("Batch")


class Watcher(Protocol):
    """An object that observes modules while they run."""

    def register(self) -> Iterable[RemovableHandle]:
        """Register hooks on the modules and return their handles."""


def run_watched(watchers: Sequence[Watcher], batches: Sequence[Batch], forward: Callable[[Batch], object]) -> None:
    """Run one forward of each batch, without gradients, with the hooks of all watchers in place."""
    handles = [handle for watcher in watchers for handle in watcher.register()]
    try:
        with torch.no_grad():
            for batch in batches:
                forward(batch)
    finally:
        for handle in handles:
            handle.remove()
