"""Make token shards with a small vocabulary, so that a small model spends its time on attention and not on logits.

    python scripts/reproduce/corpus.py TEXT.parquet --out outputs/small_corpus
    python scripts/reproduce/corpus.py TEXT.parquet --out outputs/grown_corpus --vocab-size 2048

TEXT.parquet has a column "text" of 10 MB or more. The shards are written to OUT/shards; those of an earlier call are
kept. Needs pyarrow, which the dev extras install, and tokenizers, which torchtitan installs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from saf_titan.data.manifest import read_manifest
from saf_titan.fields.command_line import Parser, run_command, value_of
from saf_titan.fields.ranges import Range

VOCAB_SIZE = 4096
"""Tokens of the vocabulary unless --vocab-size says otherwise."""

END_OF_TEXT = "<|endoftext|>"
SMALLEST = 256 + 1
"""Tokens that every vocabulary has: the bytes and the end of a text."""

SAMPLED_DOCUMENTS = 3000
"""Documents that the vocabulary is trained on, at least (if there are as many)."""


def make_corpus(text: Path, folder: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """Train a byte-pair vocabulary on a sample of `text` (parquet, column "text") and tokenize all of it.

    Returns the folder of the shards. Complete shards of an earlier call are kept.

    Raises:
        ValueError: the folder holds shards with a vocabulary of another size, or the text is too short for one of
            `vocab_size` tokens.
    """
    shards = folder / "shards"
    if (shards / "manifest.json").exists():
        found = read_manifest(shards).vocab_size
        if found != vocab_size:
            raise ValueError(
                f"{shards} holds a corpus with a vocabulary of {found} tokens, and {vocab_size} are asked for; give "
                f"another --out, or --vocab-size {found}"
            )
        return shards
    tokenizer = train_vocabulary(text, vocab_size)
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise ValueError(f"{text} is too short for {vocab_size} tokens: give more text, or --vocab-size {found}")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "tokenizer.json"
    tokenizer.save(str(vocabulary))
    command = [sys.executable, "-m", "rust_data.tokenize", str(text), "--out", str(shards)]
    command += ["--tokenizer", str(vocabulary), "--val-tokens", "1M", "--seed", "1"]
    subprocess.run(command, check=True)
    return shards


def train_vocabulary(text: Path, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on documents that are spread evenly over the file.

    The vocabulary has `vocab_size` tokens, or fewer if the sample has not as many pairs to merge.
    """
    documents = pq.read_table(text, columns=["text"])["text"].to_pylist()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents[:: max(1, len(documents) // SAMPLED_DOCUMENTS)], trainer)
    return tokenizer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 for done, 2 for a mistake of the caller."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="parquet file with a column text")
    parser.add_argument("--out", type=Path, required=True, help="folder of the vocabulary and the shards")
    parser.add_argument(
        "--vocab-size",
        type=value_of(Annotated[int, Range(low=SMALLEST)]),
        default=VOCAB_SIZE,
        metavar="N",
        help=f"tokens of the vocabulary, at least {SMALLEST} (default: {VOCAB_SIZE})",
    )
    parser.set_defaults(run=_run)
    return run_command(parser, argv)


def _run(args: argparse.Namespace) -> int:
    print(make_corpus(args.text, args.out, args.vocab_size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
