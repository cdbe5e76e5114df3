"""Finds the tokenizer of a run's corpus by the manifest beside its token files."""

from __future__ import annotations

from pathlib import Path

from rust_data import Tokenizer
from rust_data.tokenizer import BUNDLED, FROM_TIKTOKEN
from rust_data.tokenizer_file import NAME as FILE_NAME
from saf_titan.data.manifest import TokenizerEntry, read_tokenizer

_REMEDY = "give --tokenizer NAME (gpt2, cl100k_base, ...) or the path of its tokenizer.json"


def find_tokenizer(corpus: Path, given: str | None, *, vocab_size: int) -> Tokenizer:
    """Load the tokenizer that a corpus was made with: by its name, or from the tokenizer.json beside its files.

    Args:
        corpus: `data.path` of the run.
        given: name or file of a tokenizer to load; None for the one that the manifest names. If the corpus still
            exists, it must be the corpus's own.
        vocab_size: number of ids that the model knows.

    Raises ValueError if the tokenizer is not known, if its file is gone, if it is not the tokenizer of the corpus, or
    if it has more ids than the model.
    """
    recorded = read_tokenizer(corpus) if corpus.exists() else None
    tokenizer = Tokenizer(given if given is not None else _recorded_name(corpus, recorded))
    if recorded is not None and tokenizer.sha256 != recorded.sha256:
        raise ValueError(
            f"the tokenizer {given or tokenizer.name} is not that of the corpus: its vocabulary has the digest "
            f"{tokenizer.sha256[:12]}, and {recorded.path} says {recorded.name} with {recorded.sha256[:12]}; {_REMEDY}"
        )
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, and the model knows {vocab_size}; "
            f"{_REMEDY}"
        )
    return tokenizer


def _recorded_name(corpus: Path, recorded: TokenizerEntry | None) -> str:
    """Return the name or file that `Tokenizer` loads the tokenizer of a corpus from."""
    if not corpus.exists():
        raise ValueError(f"data.path = {corpus} of the run is gone, and with it the name of its tokenizer; {_REMEDY}")
    if recorded is None:
        raise ValueError(f"the files in {corpus} do not name their tokenizer; {_REMEDY}")
    # a file comes first: it may have the name of a bundled tokenizer
    beside = recorded.path.parent / FILE_NAME
    if beside.is_file():
        return str(beside)
    if recorded.name in (*BUNDLED, *FROM_TIKTOKEN):
        return recorded.name
    raise ValueError(
        f"{recorded.path} names the tokenizer {recorded.name}, whose file is not beside it; copy it to {beside}, "
        f"or {_REMEDY}"
    )
