"""Training sequences that rust_data generates in memory: MQAR and class tokens, as arrays. Imports no torch."""

import numpy as np

from rust_data import class_tokens, mqar
from saf_titan.config.generated_data import MQAR_VOCABULARY
from saf_titan.config.own_sections import DataSection

IGNORE_INDEX = mqar.IGNORE


def vocabulary(data: DataSection) -> int:
    """Number of ids of the sequences that `data` describes, answers included."""
    return data.vocab_size or MQAR_VOCABULARY if data.kind == "mqar" else data.generated_vocabulary


def generate_rows(
    data: DataSection, *, seed: int, first_row: int, rows: int, length: int, pairs: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels, int64 [rows, length]; labels are IGNORE_INDEX where nothing is asked.

    pairs: of mqar; 0 for those of `data`. Raises ValueError for settings that a generator refuses.
    """
    if data.kind == "mqar":
        inputs_NT, labels_NT = mqar.generate(
            rows,
            vocab_size=vocabulary(data),
            length=length,
            pairs=pairs or data.pairs,
            power_a=data.power_a,
            seed=seed,
            first_row=first_row,
            threads=1,
        )
        return inputs_NT.astype(np.int64), labels_NT.astype(np.int64)
    counts = (data.counts[0], data.counts[1]) if data.counts else None
    drawn = class_tokens.generate(
        rows,
        classes=data.classes,
        distinct=data.distinct,
        common=data.common,
        length=length if counts is None else None,
        gamma=data.gamma if counts is None else None,
        counts=counts,
        deterministic=data.deterministic,
        shared_query=not data.query_per_class,
        seed=seed,
        first_row=first_row,
        threads=1,
    )
    labels_NT = np.full(drawn.tokens.shape, IGNORE_INDEX, dtype=np.int64)
    # the answers are the last ids
    labels_NT[:, -1] = vocabulary(data) - data.classes + drawn.labels
    return drawn.tokens.astype(np.int64), labels_NT


def questions(
    data: DataSection, inputs_NT: np.ndarray, labels_NT: np.ndarray, *, pairs: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what rows of `generate_rows` ask, and the tokens that each answer follows from.

    Relevant are, for mqar, the value behind the key that is asked for; for class tokens, the distinct tokens. A
    question without a relevant token is left out: where gamma is small, some rows have no distinct token.

    pairs: as in `generate_rows`. Returns the row and the position of each of M questions, int64 (M,) each, and the
    relevant tokens, bool (M, T).
    """
    row_M, position_M = np.nonzero(labels_NT != IGNORE_INDEX)
    tokens_MT = inputs_NT[row_M]
    if data.kind == "mqar":
        relevant_MT = tokens_MT == labels_NT[row_M, position_M][:, None]
        # the values of the context stand at its odd places; behind it, a filler may happen to be the same token
        relevant_MT[:, 2 * (pairs or data.pairs) :] = False
        relevant_MT[:, ::2] = False
    else:
        relevant_MT = tokens_MT < data.classes * data.distinct
    is_known_M = relevant_MT.any(1)
    return row_M[is_known_M], position_M[is_known_M], relevant_MT[is_known_M]
