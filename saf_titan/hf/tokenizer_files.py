"""Read the tokenizer in the folder of a model, and write the tokenizer of a corpus into such a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import rust_data
from rust_data.tokenizer import BUNDLED
from saf_titan.config import RunConfig
from saf_titan.data.tokenizer import find_tokenizer


def read_tokenizer(model: str | Path) -> Any:
    """Return the tokenizer in the folder or .gguf file of a model. Raises ValueError if none can be read there."""
    path, settings = Path(model), {}
    if path.suffix == ".gguf":
        path, settings = path.parent, {"gguf_file": path.name}
    try:
        return AutoTokenizer.from_pretrained(path, **settings)
    except ImportError:
        raise
    except Exception as error:  # transformers raises KeyError, TypeError and others for damaged files
        reason = next(iter(str(error).splitlines()), "").rstrip()
        if not isinstance(error, ValueError | OSError):
            reason = f"{type(error).__name__}: {reason}"
        # the beginning of a list of what transformers looked for says nothing
        reason = "" if reason.endswith(":") else f" ({reason})"
        is_gguf = "gguf_file" in settings
        remedy = "the file may be damaged, copy it again" if is_gguf else "copy its tokenizer files there"
        raise ValueError(f"{model} has no tokenizer that transformers can read{reason}: {remedy}") from error


def opening_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before every text: Gemma's puts <bos> there, GPT-2's nothing."""
    whole: list[int] = tokenizer("a")["input_ids"]
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    for count in range(len(whole) - len(bare) + 1):
        if whole[count : count + len(bare)] == bare:
            return tuple(whole[:count])
    return ()


def write_tokenizer(run: RunConfig, out: Path, given: str | None = None) -> tuple[str, int | None]:
    """Write the tokenizer that the run's corpus was made with into a folder, if it is known.

    Args:
        run: the configuration of the run.
        out: the folder.
        given: name or file of the tokenizer, if it is not where `find_tokenizer` looks for it.

    Returns a phrase that says what was done, and the id of the end-of-text token (None if the tokenizer is unknown).
    Raises ValueError if ``given`` is not the tokenizer of the corpus.
    """
    try:
        ours = find_tokenizer(Path(run.data.path), given, vocab_size=run.shape.vocab_size)
    except ValueError as error:
        if given is not None:
            raise
        return f"no tokenizer ({error})", None
    tokenizer = _backend(ours)
    if tokenizer is None:
        return f"no tokenizer ({ours.name} has no tokenizer.json; give one with --tokenizer)", ours.eot
    end = tokenizer.id_to_token(ours.eot)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, model_max_length=run.training.seq_len
    ).save_pretrained(out)
    return f"tokenizer {ours.name}", ours.eot


def _backend(ours: rust_data.Tokenizer) -> Tokenizer | None:
    """Return the same tokenizer for transformers; None for a tokenizer of tiktoken, which has no tokenizer.json."""
    if ours.file is None:
        return gpt2_tokenizer() if ours.name in BUNDLED else None
    tokenizer = Tokenizer.from_file(str(ours.file))
    # the corpus has the ids of the texts alone; a post-processor would add ids around them
    tokenizer.post_processor = None
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2_tokenizer() -> Tokenizer:
    """Return GPT-2's tokenizer, made from the merges that `rust_data` bundles."""
    lines = (Path(rust_data.__file__).parent / "assets/gpt2/vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [(a, b) for a, b in (line.split(" ") for line in lines if line and not line.startswith("#version"))]
    # the ids of the 256 bytes come first, printable bytes before the others; then comes an id for each merge
    letters = _byte_letters()
    names = [*letters, *("".join(pair) for pair in merges), "<|endoftext|>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _byte_letters() -> list[str]:
    """Return the character that stands for each byte, in the order of GPT-2's ids: printable bytes, then the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [*map(chr, printable), *(chr(256 + n) for n in range(len(others)))]
