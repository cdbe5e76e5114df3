"""Generates sequences of MQAR and of class tokens with rust_data, as arrays in memory. Imports no torch."""

from functools import lru_cache

import numpy as np

from rust_data import class_tokens, mqar
from saf_titan.config.generated_data import FIRST_ZOOLOGY_SEED, MQAR_VOCABULARY
from saf_titan.config.own_sections import DataSection

IGNORE_INDEX = mqar.IGNORE


def vocabulary(data: DataSection) -> int:
    """Return the number of ids of the sequences that `data` describes, including the answers."""
    return data.vocab_size or MQAR_VOCABULARY if data.kind == "mqar" else data.generated_vocabulary


def training_seed(data: DataSection) -> int:
    """Return the seed of the training sequences, for `generate_rows`."""
    return 1_000_000 + 100_000 * (data.seed - FIRST_ZOOLOGY_SEED) if data.zoology else data.seed


def generate_rows(
    data: DataSection, *, seed: int, first_row: int, rows: int, length: int, pairs: int = 0, draw: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels, int64 [rows, length]; labels are IGNORE_INDEX at positions without a question.

    Args:
        seed, first_row: a row depends on the seed and its number alone; rows `first_row` and following are returned.
        length: tokens of a row.
        pairs: for mqar, key-value pairs of a row; 0 for data.pairs.
        draw: with data.zoology, number of rows that share one random stream; 0 for data.zoology_rows.

    Raises ValueError for settings that a generator refuses.
    """
    if data.zoology:
        draw = draw or data.zoology_rows
        first, last = first_row // draw, (first_row + rows - 1) // draw
        draws = [
            _zoology_draw(data, seed + number, draw, length, pairs or data.pairs) for number in range(first, last + 1)
        ]
        wanted = slice(first_row - first * draw, first_row - first * draw + rows)
        inputs_NT, labels_NT = (np.concatenate(arrays)[wanted] for arrays in zip(*draws, strict=True))
        return inputs_NT.astype(np.int64), labels_NT.astype(np.int64)
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
    # answers have the last ids of the vocabulary
    labels_NT[:, -1] = vocabulary(data) - data.classes + drawn.labels
    return drawn.tokens.astype(np.int64), labels_NT


def questions(
    data: DataSection, inputs_NT: np.ndarray, labels_NT: np.ndarray, *, pairs: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the questions of rows of `generate_rows`, and for each question the tokens that its answer follows from.

    For mqar, the relevant token is the value after the key that is asked for; for class tokens, the distinct tokens
    are. A question without a relevant token is left out: if gamma is small, some rows have no distinct token.

    pairs: as in `generate_rows`. Returns the row and the position of each of M questions, int64 (M,) each, and whether
    each token is relevant, bool (M, T).
    """
    row_M, position_M = np.nonzero(labels_NT != IGNORE_INDEX)
    tokens_MT = inputs_NT[row_M]
    if data.kind == "mqar":
        relevant_MT = tokens_MT == labels_NT[row_M, position_M][:, None]
        # the values of the pairs are at odd positions; after the pairs, a filler may happen to be the same token
        relevant_MT[:, 2 * (pairs or data.pairs) :] = False
        relevant_MT[:, ::2] = False
    else:
        relevant_MT = tokens_MT < data.classes * data.distinct
    is_known_M = relevant_MT.any(1)
    return row_M[is_known_M], position_M[is_known_M], relevant_MT[is_known_M]


# cached, because consecutive batches, of one rank or of several, are often parts of one draw
@lru_cache(maxsize=4)
def _zoology_draw(data: DataSection, seed: int, rows: int, length: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels of one draw of the published procedure, int32 [rows, length].

    As published, the same seed draws the pairs and the fillers.
    """
    inputs_NT, labels_NT = mqar.generate_zoology(
        rows,
        vocab_size=vocabulary(data),
        length=length,
        pairs=pairs,
        power_a=data.power_a,
        seed=seed,
        random_fillers=False,
    )
    if not data.no_fillers:
        fillers_NT = _torch_integers(vocabulary(data), seed, rows * length).reshape(rows, length)
        np.copyto(inputs_NT, fillers_NT, where=inputs_NT == 0, casting="same_kind")
    return inputs_NT, labels_NT


def _torch_integers(below: int, seed: int, number: int) -> np.ndarray:
    """Return the integers of `torch.manual_seed(seed); torch.randint(below, (number,))` on a CPU, int64, without torch.

    Both NumPy and torch have the Mersenne twister; torch takes the remainder of each of its 32-bit words.
    """
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    return (generator.random_raw(number) % below).astype(np.int64)
