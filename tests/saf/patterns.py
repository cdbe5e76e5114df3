"""Mean attentions of known shape, and their statistics computed from the dense matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def compact_parameters(T: int) -> dict[str, tuple[Tensor, Tensor]]:
    """alpha, rho of attention as trained heads show it, hard cases included."""
    generator = torch.Generator().manual_seed(T)
    t = torch.arange(T, dtype=torch.float64)
    zero = torch.zeros_like(t)

    def noise() -> Tensor:
        return torch.randn(T, generator=generator, dtype=torch.float64)

    sink = 0.2 * noise()
    sink[0] = 16
    previous = torch.full_like(t, -14) + 0.5 * noise()
    previous[:2] = torch.tensor([-2.0, 0.0])[: min(T, 2)]
    return {
        "uniform": (zero, zero),
        "local": (zero, -t / 8),
        "power": (0.3 * noise(), -t.log1p()),
        "sink": (sink, (-t / 6).clamp(min=-15)),
        "previous_token": (0.1 * noise(), previous),
        "trend": (0.1 * t, 0.1 * t - t.log1p()),
        "swing": (6 * torch.sin(6 * math.pi * t / T), -t / 50),
        "noisy": (noise(), 1.5 * noise() - t.log1p()),
    }


def masses(p_HTT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Column masses, diagonal masses and negative entropy of mean attention, from their definitions."""
    T = p_HTT.shape[-1]
    diagonal = torch.stack([p_HTT.diagonal(-k, 1, 2).sum(-1) for k in range(T)], dim=-1)
    return p_HTT.sum(1), diagonal, torch.special.xlogy(p_HTT, p_HTT).sum((1, 2))


def causal_softmax(logits_HTT: Tensor) -> Tensor:
    T = logits_HTT.shape[-1]
    return logits_HTT.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)


def noisy_attention(T: int, noise: float) -> Tensor:
    """Mean attention near the compact family, one head a shape of `compact_parameters`; outside it for noise > 0."""
    generator = torch.Generator().manual_seed(T + 1)
    position = torch.arange(T)
    lag = (position[:, None] - position).clamp(min=0)
    logits = torch.stack([alpha + rho[lag] for alpha, rho in compact_parameters(T).values()])
    return causal_softmax(logits + noise * torch.randn(logits.shape, generator=generator, dtype=torch.float64))
