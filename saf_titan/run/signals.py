"""A handler of the signals that ask a process to stop, active while some work runs. Imports no torch."""

from __future__ import annotations

import ctypes
import signal
from abc import ABC, abstractmethod
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_PARENT_DEATH_SIGNAL = 1
"""Linux's PR_SET_PDEATHSIG."""


def stop_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))


class SignalHandler(ABC):
    """A context manager in which SIGINT and SIGTERM call `_handle`; afterwards the former handlers are restored."""

    _previous: dict[signal.Signals, signal._HANDLER]

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @abstractmethod
    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""
