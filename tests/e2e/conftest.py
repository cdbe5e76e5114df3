"""A corpus that a tiny model learns in a few steps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.corpus import write_corpus

VOCAB = 256


@pytest.fixture(scope="session")
def corpus_overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Command-line overrides that point a run to a synthetic corpus of 60k + 6k tokens."""
    rng = np.random.default_rng(0)
    # a few tokens make up most of the text, as in natural language
    weights = 1.0 / (1.0 + np.arange(VOCAB - 1))
    tokens = rng.choice(VOCAB - 1, size=66_000, p=weights / weights.sum())
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, train=tokens[:60_000], val=tokens[60_000:], vocab_size=VOCAB, eot=VOCAB - 1)
    return ("--data.path", str(folder))
