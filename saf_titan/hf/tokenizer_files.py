"""Tokenizers beside models: read, copied, or made from that of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import rust_data
from saf_titan.config import RunConfig
from saf_titan.data.manifest import read_manifest


def read_tokenizer(model: str | Path) -> Any:
    """The tokenizer in the folder of a model, or in its .gguf file. ValueError if there is none that can be read."""
    path, settings = Path(model), {}
    if path.suffix == ".gguf":
        path, settings = path.parent, {"gguf_file": path.name}
    try:
        return AutoTokenizer.from_pretrained(path, **settings)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{model} has no tokenizer that transformers can read ({str(error).splitlines()[0]}): copy its tokenizer "
            "files there, or give token shards with --data"
        ) from error


def write_tokenizer(run: RunConfig, out: Path) -> tuple[str, int | None]:
    """Write the tokenizer that the run's shards were made with, if it is known.

    That is `tokenizer.json` in the folder of the shards, or GPT-2's, which is bundled. Returns a phrase that says what
    was done, and the id of the end-of-text token, None if the corpus is not there.
    """
    folder = Path(run.data.path)
    try:
        manifest = read_manifest(folder)
    except ValueError:
        return f"no tokenizer: {folder} is not there", None
    file = folder / "tokenizer.json"
    if file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
    elif manifest.tokenizer_name in ("gpt2", "r50k_base"):
        tokenizer = gpt2_tokenizer()
    else:
        return f"no tokenizer: {manifest.tokenizer_name} has no tokenizer.json in {folder}", manifest.eot
    end = tokenizer.id_to_token(manifest.eot)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, model_max_length=run.training.seq_len
    ).save_pretrained(out)
    return f"tokenizer {manifest.tokenizer_name}", manifest.eot


def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's tokenizer from the merges that `rust_data` bundles."""
    lines = (Path(rust_data.__file__).parent / "assets/gpt2/vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [(a, b) for a, b in (line.split(" ") for line in lines if line and not line.startswith("#version"))]
    # ids: the 256 bytes, printable ones first, then one for each merge
    letters = _byte_letters()
    names = [*letters, *("".join(pair) for pair in merges), "<|endoftext|>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _byte_letters() -> list[str]:
    """The letter that stands for each byte, in the order of GPT-2's ids: printable bytes, then the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [*map(chr, printable), *(chr(256 + n) for n in range(len(others)))]
