"""Heads beside each other, one a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_heads(function: Callable[[Item], Result], heads: Iterable[Item], device: torch.device) -> list[Result]:
    """Results of the function for each head, without gradients; on a CPU as many at once as torch has threads.

    A tile of a head is too small to be shared out: threads would spend their time waiting for each other at the end
    of every operation. Every head has one thread to itself, which also makes its numbers the same for any number of
    threads.
    """

    def without_gradients(head: Item) -> Result:
        # the mode belongs to a thread
        with torch.no_grad():
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
