"""Synthetic static patterns that span what frozen heads look like, the hostile ones included."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

NAMES = (
    "uniform",
    "local",
    "local-floor",
    "sink16-local",
    "sink24-local",
    "power0.5",
    "power1",
    "power2",
    "noisy",
    "spiky",
    "trend",
    "swinging-columns",
    "previous-token-sink",
)


def make_family(name: str, T: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """alpha_T and rho_T of one family, fp64."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(T, dtype=torch.float64)

    def noise(std: float) -> Tensor:
        return std * torch.randn(T, generator=generator, dtype=torch.float64)

    def sink(height: float, std: float) -> Tensor:
        alpha = noise(std)
        alpha[0] = height
        return alpha

    def spiky() -> tuple[Tensor, Tensor]:
        rho = -3 - 0.7 * t.log1p() + noise(0.5)
        rho[1] = 5.0
        rho[7::97] += 4.0
        alpha = noise(1.0)
        alpha[torch.randperm(T, generator=generator)[:12]] += 8.0
        return alpha, rho

    def previous_token() -> tuple[Tensor, Tensor]:
        rho = -14.0 + noise(0.5)
        rho[:2] = torch.tensor([-2.0, 0.0])[: min(2, T)]
        return sink(12.0, 0.1), rho

    families: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "uniform": lambda: (0 * t, 0 * t),
        "local": lambda: (0 * t, -t / 32),
        "local-floor": lambda: (noise(0.3), (-t / 8).clamp(min=-18)),
        "sink16-local": lambda: (sink(16.0, 0.2), (-t / 6).clamp(min=-15)),
        "sink24-local": lambda: (sink(24.0, 0.2), (-t / 4).clamp(min=-20)),
        "power0.5": lambda: (noise(0.3), -0.5 * t.log1p()),
        "power1": lambda: (noise(0.3), -t.log1p()),
        "power2": lambda: (noise(0.3), -2 * t.log1p()),
        "noisy": lambda: (noise(1.0), -t.log1p() + noise(1.5)),
        "spiky": spiky,
        "trend": lambda: (0.01 * t, 0.01 * t - 1.2 * t.log1p()),
        "swinging-columns": lambda: (6 * torch.sin(6 * math.pi * t / T) + noise(0.5), -t / 200),
        "previous-token-sink": previous_token,
    }
    return families[name]()


def make_families(names: tuple[str, ...], T: int) -> tuple[Tensor, Tensor]:
    """alpha_HT and rho_HT of several families, fp64."""
    alphas, rhos = zip(*(make_family(name, T) for name in names), strict=True)
    return torch.stack(alphas), torch.stack(rhos)
