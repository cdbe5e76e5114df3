"""Generation with a model of Hugging Face transformers, by its own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from saf_titan.generate.sampling import Sampling
from saf_titan.generate.text import longest_prompt, tokens_needed

_LEAST_TEMPERATURE = 1e-30


def is_transformers_model(path: Path) -> bool:
    """Return whether a path is a folder that transformers' `save_pretrained` wrote, or a .gguf file."""
    return (path / "config.json").is_file() or path.suffix == ".gguf"


class TransformersModel:
    """A model of transformers with its tokenizer, and with its static heads if it was saved with some."""

    def __init__(self, path: Path, dtype: str | None) -> None:
        """Raises ValueError if the model or its tokenizer cannot be read, or transformers is not installed."""
        try:
            from transformers import GenerationConfig
            from transformers.utils import logging

            from saf_titan import hf
            from saf_titan.hf.finite_logits import finite_logits
            from saf_titan.hf.text import require_known_ids, require_length
            from saf_titan.hf.tokenizer_files import read_tokenizer
        except ImportError as error:
            raise ValueError(f"{path} is a model of transformers: pip install 'saf_titan[hf]' ({error})") from error
        logging.disable_progress_bar()
        self._finite_logits = finite_logits
        self._require_length = require_length
        self._require_known_ids = partial(require_known_ids, model=path)
        self.tokenizer = read_tokenizer(path)
        self.model = hf.load(path, **({} if dtype is None else {"dtype": getattr(torch, dtype)})).eval()
        # The caller chooses how tokens are drawn. A folder may have other settings (beams, penalties), which
        # transformers would apply as well.
        special = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            **{name: getattr(special, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        )

    def require_prompts(self, prompts: Sequence[str], max_new_tokens: int) -> None:
        """Raise ValueError if a prompt has no token, or one that the model does not know, and if a text would be longer
        than the static heads or the positions of the model allow."""
        # without its own warning of long texts
        ids = [self.tokenizer(prompt, verbose=False)["input_ids"] for prompt in prompts]
        if empty := [number for number, prompt_ids in enumerate(ids, start=1) if not prompt_ids]:
            raise ValueError(
                f"prompt {empty[0]} of {len(ids)} is empty, and the tokenizer of this model puts no token before a "
                "text: give at least one word"
            )
        self._require_known_ids(chain.from_iterable(ids), self.model.config.vocab_size)
        remedy = f"shorten {longest_prompt(ids)} or lower --max-new-tokens"
        self._require_length(self.model, tokens_needed(ids, max_new_tokens), remedy=remedy)

    def write(self, prompt: str, *, max_new_tokens: int, sampling: Sampling, streamer: Any = None) -> str:
        """Return the text that follows a prompt. Raises ValueError if the model's output is not finite."""
        torch.manual_seed(sampling.seed)
        read = self.tokenizer(prompt, return_tensors="pt").to(self.model.device)
        # without token types, which some tokenizers give and most decoders do not take
        inputs = {name: read[name] for name in ("input_ids", "attention_mask")}
        options: dict[str, Any] = {"do_sample": sampling.temperature > 0}
        if options["do_sample"]:
            # transformers divides fp32 logits by it; at this one they are finite, and the likeliest token is certain
            temperature = max(sampling.temperature, _LEAST_TEMPERATURE)
            options |= {"temperature": temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        pad = self.tokenizer.pad_token_id
        if pad is None:
            # a model may end its texts with one of several tokens
            ends = self.model.generation_config.eos_token_id
            pad = ends[0] if isinstance(ends, list) else ends
        options |= {"pad_token_id": pad, "logits_processor": self._finite_logits()}
        with torch.no_grad():
            out = self.model.generate(**inputs, max_new_tokens=max_new_tokens, streamer=streamer, **options)
        # The new tokens are decoded behind the prompt: alone, they would lose the space before their first word in
        # tokenizers like sentencepiece.
        before: str = self.tokenizer.decode(out[0, : inputs["input_ids"].shape[1]], skip_special_tokens=True)
        whole: str = self.tokenizer.decode(out[0], skip_special_tokens=True)
        return whole[len(before) :]

    def streamer(self) -> Any:
        """Return an object that prints the text behind a prompt while it grows, for `write`."""
        from transformers import TextStreamer

        class Streamer(TextStreamer):
            """Decodes the new tokens behind those of the prompt, which are not printed."""

            next_tokens_are_prompt: bool

            def put(self, value: Any) -> None:
                if not self.next_tokens_are_prompt:
                    super().put(value)
                    return
                self.next_tokens_are_prompt = False
                self.token_cache = value.flatten().tolist()
                self.print_len = len(self.tokenizer.decode(self.token_cache, **self.decode_kwargs))

        return Streamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
