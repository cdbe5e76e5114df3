"""Generates sequences of multi-query associative recall (MQAR) in memory.

A row starts with key-value pairs. Later each key occurs once more, as a query, and the label there is its value:

    k1 v1 k2 v2  .  .  k2  .  .  .  k1  .       inputs
    -  -  -  -   -  -  v2  -  -  -  v1  -       labels, - is -100
"""

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rust_data import _native
from rust_data.outputs import check_outputs
from rust_data.sizes import check_range
from rust_data.threads import num_threads

IGNORE = -100


class Mqar(NamedTuple):
    """inputs [rows, length] and labels [rows, length], int32; labels are -100 where there is no query."""

    inputs: NDArray[np.int32]
    labels: NDArray[np.int32]


class Borders(NamedTuple):
    """The ranges of ids: fillers below first_key, keys below first_value, values below the vocabulary size."""

    first_key: int
    first_value: int


def generate(
    rows: int,
    *,
    vocab_size: int = 8192,
    length: int = 512,
    pairs: int = 8,
    power_a: float = 0.01,
    seed: int = 0,
    first_row: int = 0,
    threads: int | None = None,
    out: Mqar | None = None,
) -> Mqar:
    """Return the rows from `first_row` up to `first_row + rows` of the corpus that the other arguments define.

    A row depends only on the seed and on its number, not on batches, threads or the machine. Keys, values and fillers
    come from disjoint ranges of ids (`borders`), so that looking up each query solves the task exactly. Every position
    after the pairs can hold a query.

    Args:
        rows: Number of rows.
        vocab_size: Number of ids; a quarter are fillers, the rest keys and values in equal shares.
        length: Tokens a row, at least 3 * pairs.
        pairs: Number of key-value pairs, and of queries, a row.
        power_a: Position g after the pairs, from 0, holds a query with weight (g + 1)^(power_a - 1); 1 is uniform.
        seed: Seed of the corpus, 0 .. 2**64 - 1.
        first_row: Number of the first row.
        threads: Number of threads; by default the number of CPUs that this process may use.
        out: Arrays to fill and return instead of new ones, for example the result of an earlier call.

    Raises:
        ValueError: if an argument is out of range; the message names it.
    """
    check_range(0, 2**64 - 1, seed=seed, first_row=first_row)
    check_range(0, 2**64 - first_row, rows=rows)
    check_range(1, 2**30, vocab_size=vocab_size, pairs=pairs)
    if out is not None:
        check_outputs(dict.fromkeys(Mqar._fields, ((rows, length), np.int32)), out)
    result = out if out is not None else _empty(rows, length)
    _native.mqar(
        *result,
        vocab_size=vocab_size,
        pairs=pairs,
        power_a=power_a,
        seed=seed,
        first_row=first_row,
        threads=num_threads(threads),
    )
    return result


def borders(vocab_size: int) -> Borders:
    """Return where keys and values begin among the ids of `generate`."""
    row = _empty(1, 3)
    return Borders(*_native.mqar(*row, vocab_size=vocab_size, pairs=1, power_a=1.0, seed=0, first_row=0, threads=1))


def generate_zoology(
    examples: int,
    *,
    vocab_size: int = 8192,
    length: int = 64,
    pairs: int = 4,
    power_a: float = 0.01,
    seed: int = 0,
    random_fillers: bool = True,
) -> Mqar:
    """Return exactly the rows of the published generator (zoology), including its peculiarities.

    All examples share one random stream, queries have even offsets only, and a filler can repeat a key of its row.
    As published, fillers are one draw `torch.randint(vocab_size, (examples, length))` from torch's global generator,
    which depends on `torch.manual_seed` and not on `seed`.

    Args:
        examples: Number of rows; with another number, all rows are different.
        vocab_size: Number of ids; keys are 1 .. vocab_size // 2 - 1, values are the upper half.
        length: Tokens a row; even, at least 4 * pairs, below vocab_size.
        pairs: Number of key-value pairs a row.
        power_a: Slot g, from 0, has a weight proportional to (g + 1)^(power_a - 1).
        seed: Seed of NumPy's legacy generator, 0 .. 2**32 - 1.
        random_fillers: False for zeros in place of fillers; torch is then not needed.

    Raises:
        ValueError: if an argument is out of range (the message names it), or if fillers need torch and it is missing.
    """
    check_range(0, 2**32 - 1, seed=seed)
    check_range(1, 2**30, vocab_size=vocab_size, pairs=pairs)
    if not 0 < power_a <= 10:
        raise ValueError(f"power_a={power_a}: must be in (0, 10]")
    result = _empty(examples, length)
    # computed in NumPy, as published, because the last bits of the weights can change a draw
    slots = max((length - 2 * pairs) // 2, 0)
    weights = power_a * np.arange(1, slots + 1) ** (float(power_a) - 1)
    weights = weights / weights.sum()
    _native.zoology_mqar(*result, vocab_size=vocab_size, pairs=pairs, slot_weights=weights, seed=seed)
    if random_fillers:
        fillers = _torch().randint(vocab_size, (examples, length)).numpy()
        np.copyto(result.inputs, fillers, where=result.inputs == 0, casting="same_kind")
    return result


def _torch() -> Any:
    if "torch" not in sys.modules:
        try:
            import torch
        except ImportError:
            raise ValueError("the published fillers are drawn by torch: install torch, or leave fillers out") from None
        return torch
    return sys.modules["torch"]


def _empty(rows: int, length: int) -> Mqar:
    check_range(0, 2**40, rows=rows)
    check_range(1, 2**24, length=length)
    return Mqar(np.empty((rows, length), dtype=np.int32), np.empty((rows, length), dtype=np.int32))


def preview(inputs: NDArray[np.int32], labels: NDArray[np.int32], pairs: int) -> str:
    """Return one row as readable text: the pairs, then each query with its position and label, then the fillers."""
    names = {int(key): f"k{i + 1}" for i, key in enumerate(inputs[: 2 * pairs : 2])}
    lines = ["pairs:"]
    for i in range(pairs):
        lines.append(f"  k{i + 1} {inputs[2 * i]:>6} -> v{i + 1} {inputs[2 * i + 1]:>6}")
    lines.append("queries:")
    for position in np.flatnonzero(labels != IGNORE):
        key, value = int(inputs[position]), int(labels[position])
        lines.append(f"  at {position:>5}: {names.get(key, '?')} {key:>6}, label {value:>6}")
    fillers = inputs[2 * pairs :][labels[2 * pairs :] == IGNORE]
    lines.append(f"fillers: {len(fillers)}, ids {fillers.min()} .. {fillers.max()}" if len(fillers) else "no fillers")
    return "\n".join(lines)
