"""Open a run, a checkpoint of this trainer, or a model of transformers for analysis.

Legend: B sequences, T time, N positions, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.data.excerpts import Excerpts, cut_excerpts
from saf_titan.fields.places import read_utf8
from saf_titan.generate.transformers import TransformersModel, is_transformers_model


def open_decoder(
    path: Path, *, length: int, config: Path | None = None, tokenizer: str | None = None, dtype: str = "float32"
) -> AnalysedDecoder:
    """Open a model in evaluation mode.

    Args:
        path: a run's folder, which stands for its newest checkpoint; a checkpoint; a folder of transformers or a .gguf
            file.
        length: number of tokens of the longest sequence.
        config, tokenizer: those of a run, if they are not in their usual places; see `find_source`, `find_tokenizer`.
        dtype: "float32" or "bfloat16".

    Raises ValueError if the model cannot be read or is not defined for so many tokens.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a checkpoint, a run's folder or a folder of transformers")
    if is_transformers_model(path):
        if config or tokenizer:
            raise ValueError(f"--config and --tokenizer are for checkpoints of this trainer; {path} is of transformers")
        decoder = _of_transformers(path, dtype)
    else:
        decoder = _of_checkpoint(path, length, config, tokenizer, dtype)
    if decoder.longest is not None and length > decoder.longest:
        raise ValueError(f"--length {length}, but {decoder.name} is defined for {decoder.longest} tokens")
    return decoder


def _of_transformers(path: Path, dtype: str) -> AnalysedDecoder:
    opened = TransformersModel(path, dtype)
    model: Any = opened.model
    # transformers is installed, because the line above did not raise
    from saf_titan.hf.text import longest_text, text_windows

    def logits(tokens_BT: Tensor, rows_N: Tensor) -> Tensor:
        found: Tensor = model(
            input_ids=tokens_BT.to(model.device), use_cache=False, logits_to_keep=rows_N.to(model.device)
        ).logits
        return found

    return AnalysedDecoder(
        name=str(path),
        attentions=model.attentions,
        logits=logits,
        vocab_size=model.config.vocab_size,
        blocks=model.blocks,
        norms=model.attention_norms,
        longest=longest_text(model),
        read=lambda file, number, length: text_windows(file, path, number, length, vocab_size=model.config.vocab_size),
        pieces=partial(_words, opened.tokenizer),
        plan=model.plan,
    )


def _of_checkpoint(path: Path, length: int, config: Path | None, tokenizer: str | None, dtype: str) -> AnalysedDecoder:
    # the import of torchtitan is slow
    from saf_titan.data.tokenizer import find_tokenizer
    from saf_titan.generate.cached_model import length_limit
    from saf_titan.generate.checkpoint import find_source, load_for_generation

    source = find_source(path, config)
    encoder = find_tokenizer(Path(source.run.data.path), tokenizer, vocab_size=source.run.shape.vocab_size)
    model = load_for_generation(source, length=length, dtype=dtype)
    blocks = list(model.layers.values())

    def logits(tokens_BT: Tensor, rows_N: Tensor) -> Tensor:
        device = model.lm_head.weight.device
        # apply the output head to these positions only
        model._skip_lm_head = True
        try:
            h_BTC = model(tokens_BT.to(device))
        finally:
            model._skip_lm_head = False
        found: Tensor = model.lm_head(h_BTC[:, rows_N.to(device)])
        return found

    def read(file: Path, number: int | None, length: int) -> Excerpts:
        ids = encoder.encode(read_utf8(file))
        return cut_excerpts(lambda start, stop: ids[start:stop], len(ids), number, length, source=str(file))

    return AnalysedDecoder(
        name=str(source.checkpoint),
        attentions=[block.attention for block in blocks],
        logits=logits,
        vocab_size=encoder.vocab_size,
        blocks=blocks,
        longest=length_limit(model)[0],
        read=read,
        pieces=partial(_pieces, encoder),
        plan=source.plan,
    )


def _pieces(encoder: Any, ids: list[int]) -> list[str]:
    return [encoder.decode_bytes([token]).decode("utf-8", "replace") for token in ids]


def _words(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return the text of each token, with the leading space that tokenizers like sentencepiece drop from a text."""
    texts = [tokenizer.decode([token]) for token in ids]
    marks = [(piece or "").startswith("\u2581") for piece in tokenizer.convert_ids_to_tokens(ids)]
    return [f" {text}" if mark and not text.startswith(" ") else text for text, mark in zip(texts, marks, strict=True)]
