"""A decoder whose attention layers have a cache: it reads the prompts, then one token of each sequence at a time.

Legend: B sequences, T tokens of the longest prompt, C model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from saf_titan.generate.attention import CachedAttention
from saf_titan.generate.layout import Choice
from saf_titan.generate.progress import Progress
from saf_titan.layers.attention import SAFAttention
from saf_titan.models.decoder import FreezableDecoder


class CachedModel:
    """A model with its caches, as `cached` yields it."""

    def __init__(self, model: FreezableDecoder, layers: Sequence[CachedAttention], progress: Progress) -> None:
        self._model, self._layers, self._progress = model, layers, progress

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read the prompts and return the logits of the next token of each, fp32 [B, V]. The caches begin anew.

        Raises ValueError if there is no prompt, a prompt is empty, or a prompt is longer than the caches.
        """
        lengths = [len(prompt) for prompt in prompts]
        require_prompts(prompts)
        if max(lengths) > self._progress.capacity:
            raise ValueError(
                f"a prompt has {max(lengths)} tokens, and the caches were made for {self._progress.capacity}: give "
                "`cached` a larger capacity"
            )
        self._progress.start(lengths)
        # padding is at the right end, where no token of the prompt attends to it
        padded = [[*prompt, *[0] * (max(lengths) - len(prompt))] for prompt in prompts]
        return self._logits(torch.tensor(padded, device=self._device), None)

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Add one token to each sequence and return the logits of the next one, fp32 [B, V].

        Raises ValueError before `prefill`, unless there is one token for each prompt, and if the caches are full.
        """
        lengths, capacity = self._progress.lengths, self._progress.capacity
        if len(tokens) != len(lengths) or not lengths:
            raise ValueError(f"{len(tokens)} tokens for {len(lengths)} prompts: give one for each prompt of `prefill`")
        if max(lengths) >= capacity:
            raise ValueError(
                f"the caches were made for {capacity} tokens and are full: give `cached` a larger capacity"
            )
        self._progress.advance()
        positions_B1 = torch.tensor(self._progress.positions, device=self._device)[:, None]
        # sequences of the same length share one row of positions, with which rotary embeddings are faster
        if self._progress.is_even:
            positions_B1 = positions_B1[:1]
        return self._logits(torch.tensor(tokens, device=self._device)[:, None], positions_B1)

    @property
    def num_bytes(self) -> int:
        """Bytes of the caches of all layers."""
        return sum(layer.num_bytes for layer in self._layers)

    @property
    def choices(self) -> list[tuple[Choice, ...]]:
        """How the static heads of each layer decode, and why."""
        return [layer.choices for layer in self._layers]

    @property
    def _device(self) -> torch.device:
        return self._model.lm_head.weight.device

    def _logits(self, tokens_BT: Tensor, positions: Tensor | None) -> Tensor:
        # apply the output head to the last tokens only: on whole prompts it would cost more than all layers
        self._model._skip_lm_head = True
        try:
            h_BTC = self._model(tokens_BT, positions)
        finally:
            self._model._skip_lm_head = False
        last_B = torch.tensor(self._progress.positions, device=h_BTC.device) if self._progress.is_prefill else 0
        h_BC = h_BTC[torch.arange(len(h_BTC), device=h_BTC.device), last_B]
        logits_BV: Tensor = self._model.lm_head(h_BC)
        return logits_BV.float()


@contextmanager
def cached(model: FreezableDecoder, capacity: int, *, states: bool = True) -> Iterator[CachedModel]:
    """Give every attention layer of a model a cache while the context lasts.

    Args:
        capacity: largest number of tokens of a sequence.
        states: let static heads decode from a state of fixed size if their certified error allows.

    Raises ValueError if the model is not defined for so many tokens. Heads may not be frozen inside the context.
    """
    longest, reason = length_limit(model)
    if capacity > longest:
        raise ValueError(f"{capacity} tokens are more than the model is defined for: {reason}")
    progress, layers = Progress(capacity), []
    was_training = model.training
    model.eval()
    blocks = list(model.layers.values())
    originals: list[SAFAttention] = [block.attention for block in blocks]
    try:
        for block, attention in zip(blocks, originals, strict=True):
            block.attention = CachedAttention(attention, progress, states=states)
            layers.append(block.attention)
        yield CachedModel(model, layers, progress)
    finally:
        for block, attention in zip(blocks, originals, strict=True):
            block.attention = attention
        model.train(was_training)


def require_prompts(prompts: Sequence[Sequence[int]]) -> None:
    """Raise ValueError if there is no prompt, or if a prompt has no token."""
    if not prompts:
        raise ValueError("there is no prompt: give at least one")
    if empty := [index for index, prompt in enumerate(prompts) if not len(prompt)]:
        raise ValueError(f"prompt {empty[0]} is empty: give at least one token, such as the one between documents")


def length_limit(model: FreezableDecoder) -> tuple[int, str]:
    """Return the length of the longest sequence that a model is defined for, and what limits it, as a clause."""
    limits = []
    if (learned := getattr(model, "pos_embeddings", None)) is not None:
        limits.append((learned.num_embeddings, f"it has {learned.num_embeddings} learned positions"))
    for layer in model.layers.values():
        attention = layer.attention
        if (rotations := getattr(attention.rope, "cache", None)) is not None:
            limits.append((len(rotations), f"its rotations are made for {len(rotations)} positions"))
        if rows := attention.fitted_length:
            limits.append((rows, f"its static heads are fitted to sequences of {rows} tokens"))
    return min(limits, key=lambda limit: limit[0])
