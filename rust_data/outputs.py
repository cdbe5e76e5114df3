"""Checks arrays that a caller passes for the results, so that a training loop can reuse its memory."""

import itertools
from typing import Any

import numpy as np


def check_outputs(expected: dict[str, tuple[tuple[int, ...], type]], arrays: tuple[Any, ...]) -> None:
    """Raises ValueError unless the arrays have the named shapes and types and can be filled in place."""
    if len(arrays) != len(expected):
        raise ValueError(f"out: needs the {len(expected)} arrays {', '.join(expected)}, got {len(arrays)}")
    for (name, (shape, dtype)), array in zip(expected.items(), arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"out: {name} must be an array {np.dtype(dtype)} {shape}, got {found}")
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(f"out: {name} must be C-contiguous and writeable")
    if any(np.may_share_memory(a, b) for a, b in itertools.combinations(arrays, 2)):
        raise ValueError(f"out: {', '.join(expected)} must not share memory")
