"""Generates class-token sequences in memory: the class of a row can be read from its tokens.

Each class owns some distinct token types; common types belong to no class. A row is a context of tokens of both
kinds, then a query token; its label is the class (Tian et al. 2023; Vashisht and Ramaswamy 2026).
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

    `distinct` marks the tokens that belong to the class, for the horizontal axis of a DTAP map.
    """

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    distinct: NDArray[np.bool_]


def vocab_size(*, classes: int, distinct: int, common: int, shared_query: bool = True) -> int:
    """Return the number of ids: first `classes * distinct` distinct types, then `common` ones, then the queries."""
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
    """Return the rows from `first_row` up to `first_row + rows` of the corpus that the other arguments define.

    The context is set in one of two ways. With `length` and `gamma`, each context token is distinct with probability
    gamma. With `counts` = (m, n), each context has m distinct and n common tokens in random order.

    Args:
        rows: Number of rows.
        classes: Number of classes; the class of a row is drawn uniformly.
        distinct: Number of token types that each class owns.
        common: Number of token types that belong to no class.
        length: Tokens a row, including the query (with `gamma`).
        gamma: Probability in [0, 1] that a context token is distinct.
        counts: Numbers of distinct and of common tokens of each context.
        deterministic: With `counts`: classes and types take turns instead of being drawn.
        shared_query: True for one query token for all classes, False for one a class.
        seed: Seed of the corpus, 0 .. 2**64 - 1. A row depends only on the seed and on the number of the row.
        first_row: Number of the first row.
        threads: Number of threads; by default the number of CPUs that this process may use.
        out: Arrays to fill and return instead of new ones, for example the result of an earlier call.

    Raises:
        ValueError: if an argument is out of range or does not go with the others; the message names the argument.
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
    """Return one row (tokens [length], label, distinct [length]) as readable text."""
    context = [
        f"d{token // distinct}.{token % distinct}" if mark else f"c{token}"
        for token, mark in zip(row.tokens[:-1].tolist(), row.distinct[:-1], strict=True)
    ]
    query = "query" if shared_query else f"query of class {row.labels}"
    return f"class {row.labels}: {' '.join(context)} | {query}"
