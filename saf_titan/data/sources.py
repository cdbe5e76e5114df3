"""Chooses the loaders of a run for the kind of data that its configuration names."""

from dataclasses import replace

from saf_titan.config import RunConfig
from saf_titan.data.cursor import CursorLoader
from saf_titan.data.generate import training_seed
from saf_titan.data.loader import ShardLoader
from saf_titan.data.row_files import RowFileLoader
from saf_titan.data.rows import RowLoader


def training_loader(run: RunConfig) -> CursorLoader.Config:
    """Return the configuration of the loader of the training sequences."""
    data = run.data
    if data.from_files:
        return RowFileLoader.Config(data=data, seed=data.seed, shuffle=data.shuffle, vocab_size=run.shape.vocab_size)
    if data.is_generated:
        return RowLoader.Config(data=data, seed=training_seed(data), vocab_size=run.shape.vocab_size)
    return ShardLoader.Config(
        path=data.path,
        corpus_vocab_size=data.vocab_size,
        seed=data.seed,
        shuffle=data.shuffle,
        verify=data.verify,
        vocab_size=run.shape.vocab_size,
    )


def validation_loader(run: RunConfig) -> CursorLoader.Config:
    """Return the configuration of the loader of the validation sequences.

    For generated data, the validator fills in length and number of pairs of each kind of sequences.
    """
    loader = training_loader(run)
    if isinstance(loader, RowLoader.Config):
        return replace(loader, max_rows=run.validator.examples, draw=run.validator.examples)
    if isinstance(loader, RowFileLoader.Config):
        return replace(loader, split="validation", max_rows=run.validator.examples, shuffle=False)
    assert isinstance(loader, ShardLoader.Config)
    return replace(loader, split="validation", max_tokens=run.validator.tokens, shuffle=False, verify=False)
