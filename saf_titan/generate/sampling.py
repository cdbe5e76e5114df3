"""Choose the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Divides the logits. 0: always the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to choose from. 0: all."""
    top_p: float = 1.0
    """Choose among the fewest most likely tokens that together have at least this probability."""
    seed: int = 0

    def __post_init__(self) -> None:
        # written so that NaN is refused too
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature = {self.temperature:g} must be at least 0 and finite")
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k} must be at least 0; 0 stands for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p:g} must be above 0 and at most 1")


class Sampler:
    """Draws the tokens of one sequence, with random numbers that do not depend on other sequences of the batch."""

    def __init__(self, sampling: Sampling, sequence: int) -> None:
        """sequence: index of the sequence, which gets the seed `sampling.seed + sequence`."""
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed + sequence)

    def draw(self, logits_V: Tensor) -> int:
        """Return the id of the next token."""
        if self._sampling.temperature == 0:
            return int(logits_V.argmax())
        probs_V = token_probabilities(logits_V.cpu(), self._sampling)
        return int(torch.multinomial(probs_V, 1, generator=self._generator))


def token_probabilities(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """Return the distribution that tokens are drawn from, float64 [V]; the temperature must be above 0."""
    logits_V = logits_V.double()
    # shifted first: a small temperature must not overflow
    probs_V = ((logits_V - logits_V.max()) / sampling.temperature).softmax(0)
    sorted_V, order_V = probs_V.sort(descending=True, stable=True)
    if 0 < sampling.top_k < len(probs_V):
        sorted_V[sampling.top_k :] = 0
        sorted_V /= sorted_V.sum()
    if sampling.top_p < 1:
        # a token stays if the sum of the more likely ones is below top_p; so the first one always stays
        sorted_V[sorted_V.cumsum(0) - sorted_V >= sampling.top_p] = 0
        sorted_V /= sorted_V.sum()
    return torch.empty_like(probs_V).scatter_(0, order_V, sorted_V)
