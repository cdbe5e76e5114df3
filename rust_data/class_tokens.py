"""Class-token sequences, in memory: the class of a row shows in which tokens occur in it.

Each class owns some distinct token types; common types belong to none. A row is a context of both kinds and
a query in its last place; its label is the class (Tian et al. 2023; Vashisht and Ramaswamy 2026).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rust_data import _native
from rust_data.outputs import check_outputs
from rust_data.sizes import check_range
from rust_data.threads import num_threads


class ClassTokens(NamedTuple):
    """tokens [rows, length] int32, labels [rows] int32, distinct [rows, length] bool.

    `distinct` marks the tokens that tell the class, for the horizontal axis of a DTAP map.
    """

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    distinct: NDArray[np.bool_]


def vocab_size(*, classes: int, distinct: int, common: int, shared_query: bool = True) -> int:
    """Number of ids: `classes * distinct` distinct types, then the common ones, then the query or queries."""
    return classes * distinct + common + (1 if shared_query else classes)


def generate(
    rows: int,
    *,
    classes: int = 4,
    distinct: int = 1,
    common: int = 16,
    length: int | None = None,
    gamma: float | None = None,
    counts: tuple[int, int] | None = None,
    deterministic: bool = False,
    shared_query: bool = True,
    seed: int = 0,
    first_row: int = 0,
    threads: int | None = None,
    out: ClassTokens | None = None,
) -> ClassTokens:
    """Rows `first_row .. first_row + rows` of the corpus that the other arguments name.

    The context is given in one of two ways: `length` and `gamma`, each token distinct with probability gamma,
    or `counts` = (m, n), m distinct and n common tokens in random order.

    Args:
        rows: How many rows.
        classes: Number of classes; a row's class is uniform.
        distinct: Token types that each class owns.
        common: Token types that belong to no class.
        length: Tokens a row, the query included (with `gamma`).
        gamma: Probability in [0, 1] that a context token is distinct.
        counts: Distinct and common tokens of each context.
        deterministic: With `counts`: classes and types take turns instead of being drawn.
        shared_query: One query token for all classes, or one a class.
        seed: Names the corpus, 0 .. 2**64 - 1. A row depends on (seed, its number) alone.
        first_row: Where to start.
        threads: Default: the CPUs this process may use.
        out: Filled and returned instead of new arrays: the result of an earlier call of the same shape, say.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    if (gamma is None) == (counts is None) or (gamma is None) != (length is None):
        raise ValueError("give either length and gamma, or counts=(m, n)")
    if deterministic and counts is None:
        raise ValueError("deterministic=True needs counts=(m, n)")
    if counts is not None and len(counts) != 2:
        raise ValueError(f"counts={counts}: must be (m, n), distinct and common tokens of a context")
    if counts is not None and min(counts) < 0:
        raise ValueError(f"counts={counts}: must not be negative")
    check_range(0, 2**64 - 1, seed=seed, first_row=first_row)
    check_range(1, 2**14, classes=classes, distinct=distinct, common=common)
    width = sum(counts) + 1 if counts is not None else length
    assert width is not None
    check_range(0, 2**40, rows=rows)
    check_range(2, 2**24, length=width)
    arrays = {"tokens": ((rows, width), np.int32), "labels": ((rows,), np.int32), "distinct": ((rows, width), np.bool_)}
    if out is not None:
        check_outputs(arrays, out)
    else:
        out = ClassTokens(*(np.empty(shape, dtype) for shape, dtype in arrays.values()))
    _native.class_tokens(
        out.tokens,
        out.labels,
        classes=classes,
        distinct=distinct,
        common=common,
        gamma=gamma,
        num_distinct=counts[0] if counts is not None else 0,
        deterministic=deterministic,
        shared_query=shared_query,
        seed=seed,
        first_row=first_row,
        threads=num_threads(threads),
    )
    np.less(out.tokens, classes * distinct, out=out.distinct)
    return out


def preview(row: ClassTokens, *, distinct: int, shared_query: bool = True) -> str:
    """One row (tokens [length], label, distinct [length]) as a person reads it."""
    context = [
        f"d{token // distinct}.{token % distinct}" if mark else f"c{token}"
        for token, mark in zip(row.tokens[:-1].tolist(), row.distinct[:-1], strict=True)
    ]
    query = "query" if shared_query else f"query of class {row.labels}"
    return f"class {row.labels}: {' '.join(context)} | {query}"
