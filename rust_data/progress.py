"""Shows the progress of a long run: as a bar on a terminal, otherwise as a line every 30 seconds."""

import threading
import time
from collections.abc import Callable
from typing import TextIO

from rust_data.sizes import format_count

_BAR_SECONDS = 0.2
_LINE_SECONDS = 30.0
_BAR_WIDTH = 24

Counters = tuple[int, int, int, int, int, int, int]


def show(progress: Callable[[], Counters], worker: threading.Thread, stream: TextIO | None) -> None:
    """Write progress to `stream` until `worker` ends; no output if it is None.

    progress: returns the counters of `TokenizeJob.progress`.
    """
    if stream is None:
        worker.join()
        return
    on_terminal = stream.isatty()
    start = time.monotonic()
    while worker.is_alive():
        worker.join(_BAR_SECONDS if on_terminal else _LINE_SECONDS)
        line = describe(progress(), time.monotonic() - start)
        if on_terminal:
            stream.write(f"\r\x1b[2K{line}")
        elif worker.is_alive():
            stream.write(f"{line}\n")
        stream.flush()
    if on_terminal:
        stream.write("\n")


def describe(counters: Counters, seconds: float) -> str:
    """Return one line of text with the share that is done, the speed, the counts so far, and the time left."""
    text_bytes, tokens, documents, skipped, shards, read, total = counters
    share = min(read / total, 1.0) if total else 0.0
    filled = round(share * _BAR_WIDTH)
    left = seconds * (1 - share) / share if share > 0 else 0.0
    parts = [
        f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}",
        f"{text_bytes / 1e6 / max(seconds, 1e-9):.0f} MB/s",
        f"{format_count(tokens)} tokens",
        f"{format_count(documents)} documents",
        f"{shards} shards",
        f"{_clock(left)} left",
    ]
    if skipped:
        parts.append(f"{skipped} rows skipped")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
