"""Interleaved timing of alternatives in one process, and a line that describes the machine."""

from __future__ import annotations

import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

Run = Callable[[], object]
MANY_ROUNDS = 200
MIN_SECONDS = 4.0
SAMPLE_SECONDS = 0.02


class Timing(NamedTuple):
    """Seconds of one alternative: median, fastest sample, and spread (half the interquartile range over the median)."""

    seconds: float
    fastest: float
    spread: float
    runs: int
    peak_bytes: int | None


def time_interleaved(
    runs: Mapping[str, Run], device: torch.device, rounds: int, clock: str = "wall"
) -> dict[str, Timing]:
    """Time every alternative in every round, each second round in reverse order (ABBA), after one warm-up.

    rounds: the least number of rounds; short runs get more, up to `MANY_ROUNDS`, until `MIN_SECONDS` are over.
    clock: "wall", or "cpu" for the processor time of this process, which a busy machine disturbs less (one thread).
    """
    now = _clock(device, clock)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    repeats = {name: _repeats(run, now) for name, run in runs.items()}
    begin = time.perf_counter()
    for i in range(MANY_ROUNDS):
        if i >= rounds and time.perf_counter() - begin > MIN_SECONDS:
            break
        order = list(runs.items()) if i % 2 == 0 else list(runs.items())[::-1]
        for name, run in order:
            start = now()
            for _ in range(repeats[name]):
                run()
            seconds[name].append((now() - start) / repeats[name])
    return {name: _summary(seconds[name], _peak_bytes(runs[name], device)) for name in runs}


def _repeats(run: Run, now: Callable[[], float]) -> int:
    """Return the number of calls that fill `SAMPLE_SECONDS`.

    So a short run is not timed with the caches in the state in which another run has left them.
    """
    start = now()
    run()
    if now() - start > 50 * SAMPLE_SECONDS:
        return 1
    start = now()
    run()
    return max(1, round(SAMPLE_SECONDS / max(now() - start, 1e-6)))


def machine_line(device: torch.device) -> str:
    """Return processor or GPU, threads, and versions, as one line."""
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    else:
        where = f"{_processor()}, {torch.get_num_threads()} thread(s)"
    return f"{where}, torch {torch.__version__}, Python {platform.python_version()}"


def _clock(device: torch.device, clock: str) -> Callable[[], float]:
    if device.type == "cuda":

        def now() -> float:
            torch.cuda.synchronize(device)
            return time.perf_counter()

        return now
    return time.process_time if clock == "cpu" else time.perf_counter


def _summary(seconds: list[float], peak_bytes: int | None) -> Timing:
    median = statistics.median(seconds)
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [median] * 3
    return Timing(median, min(seconds), (quartiles[2] - quartiles[0]) / 2 / median, len(seconds), peak_bytes)


def _peak_bytes(run: Run, device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def process_peak_bytes() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
