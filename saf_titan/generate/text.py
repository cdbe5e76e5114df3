"""The loop from prompts to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from saf_titan.generate.cached_model import CachedModel, cached, require_prompts
from saf_titan.generate.sampling import Sampler, Sampling
from saf_titan.models.decoder import FreezableDecoder
from saf_titan.ops.finite import require_finite


def generate(
    model: FreezableDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: int | None = None,
    vocab_size: int | None = None,
    first_sequence: int = 0,
    watch: Callable[[CachedModel], None] | None = None,
) -> Iterator[list[int | None]]:
    """Yield the next token of every prompt, step by step; None for a sequence that has ended.

    Args:
        prompts: token ids, at least one in each prompt; their lengths may differ.
        max_new_tokens: tokens after each prompt, at least 1.
        stop: the token that ends a sequence; it is not part of the result.
        vocab_size: ids from this one on are padding of the embedding and are never drawn.
        first_sequence: index of the first prompt, for prompts that come in several batches; see `Sampler`.
        watch: called once, when the prompts are in the cache.

    Raises ValueError before the first token if a sequence would be longer than the model is defined for, a prompt is
    empty, or `max_new_tokens` is below 1; and later if the model's output is not finite.
    """
    require_prompts(prompts)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens = {max_new_tokens} must be at least 1")
    samplers = [Sampler(sampling, first_sequence + index) for index in range(len(prompts))]
    has_ended = [False] * len(prompts)
    with cached(model, tokens_needed(prompts, max_new_tokens)) as decoder:
        logits_BV = decoder.prefill(prompts)
        if watch is not None:
            watch(decoder)
        for count in range(1, max_new_tokens + 1):
            require_finite(logits_BV, "the model's output")
            drawn = [sampler.draw(logits_V[:vocab_size]) for sampler, logits_V in zip(samplers, logits_BV, strict=True)]
            has_ended = [ended or token == stop for ended, token in zip(has_ended, drawn, strict=True)]
            if all(has_ended):
                return
            yield [None if ended else token for ended, token in zip(has_ended, drawn, strict=True)]
            if count < max_new_tokens:
                logits_BV = decoder.step(drawn)


def tokens_needed(prompts: Sequence[Sequence[int]], max_new_tokens: int) -> int:
    """Return how many tokens of the longest sequence the model reads; the last token is written but not read."""
    return max(map(len, prompts)) + max_new_tokens - 1


def longest_prompt(prompts: Sequence[Sequence[int]]) -> str:
    """Return the name of the longest prompt, for an error: "the prompt", or "prompt 2 of 3" if there are several."""
    lengths = [len(prompt) for prompt in prompts]
    return "the prompt" if len(lengths) == 1 else f"prompt {lengths.index(max(lengths)) + 1} of {len(lengths)}"
