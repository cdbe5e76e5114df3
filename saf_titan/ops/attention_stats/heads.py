"""Compute heads in parallel, one head per thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_heads(function: Callable[[Item], Result], heads: Iterable[Item], device: torch.device) -> list[Result]:
    """Return the results of `function` for each head, without gradients and without autocast.

    On a CPU, as many heads run at once as torch has threads, each on one thread. A tile of a head is too small to be
    split over threads: they would wait for each other after every operation. With one thread per head, the result also
    does not depend on the number of threads.
    """

    def without_gradients(head: Item) -> Result:
        # Both modes are set per thread. Autocast would round the scores to 16 bits.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            return function(head)

    num_threads = torch.get_num_threads()
    if num_threads == 1 or device.type != "cpu":
        return [without_gradients(head) for head in heads]
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(without_gradients, heads))
    finally:
        torch.set_num_threads(num_threads)
