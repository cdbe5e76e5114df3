"""The number of threads to use."""

import os


def num_threads(asked: int | None) -> int:
    """Return `asked`, or for None the number of CPUs that this process may use; ValueError if `asked` is below 1."""
    if asked is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked < 1:
        raise ValueError(f"threads={asked}: must be at least 1")
    return asked
