"""Make token shards with a small vocabulary, so that a small model spends its time on attention and not on logits.

    python scripts/reproduce/corpus.py TEXT.parquet --out outputs/small_corpus

TEXT.parquet has a column "text" of 10 MB or more. The shards are written to OUT/shards, unless they exist already.
Needs pyarrow, which the dev extras install, and tokenizers, which torchtitan installs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
SAMPLED_DOCUMENTS = 3000


def make_corpus(text: Path, folder: Path) -> Path:
    """Train a byte-pair vocabulary on a sample of `text` (parquet, column "text") and tokenize all of it.

    Returns the folder of the shards. Shards of an earlier call are kept.
    """
    shards = folder / "shards"
    if not (shards / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary = folder / "tokenizer.json"
        train_vocabulary(text).save(str(vocabulary))
        command = [sys.executable, "-m", "rust_data.tokenize", str(text), "--out", str(shards)]
        command += ["--tokenizer", str(vocabulary), "--val-tokens", "1M", "--seed", "1"]
        subprocess.run(command, check=True)
    return shards


def train_vocabulary(text: Path) -> Tokenizer:
    """Train a byte-level BPE of `VOCAB_SIZE` tokens on documents spread evenly over the file."""
    documents = pq.read_table(text, columns=["text"])["text"].to_pylist()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents[:: max(1, len(documents) // SAMPLED_DOCUMENTS)], trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="parquet file with a column text")
    parser.add_argument("--out", type=Path, required=True, help="folder of the vocabulary and the shards")
    args = parser.parse_args()
    print(make_corpus(args.text, args.out))


if __name__ == "__main__":
    main()
