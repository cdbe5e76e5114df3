"""States of fixed size against the matrix of the pattern in fp64, and the bound of their error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.generate.recurrence import DecayingSums, certified_error
from saf_titan.ops.pattern import attention_rows, prepare_pattern

T, D = 400, 4
LAG_T = torch.arange(T).float()
DECAYS = {
    "exponential": -0.02 * LAG_T,
    "constant": torch.zeros(T),
    "power law": -(LAG_T + 1).log(),
    "two scales": (torch.exp(-0.05 * LAG_T) + 0.01).log(),
    "rough": torch.randn(T, generator=torch.Generator().manual_seed(3)),
}


def vectors(name: str) -> tuple[Tensor, Tensor]:
    alpha_1T = torch.randn(1, T, generator=torch.Generator().manual_seed(0))
    alpha_1T[:, 0] += 5
    return alpha_1T, DECAYS[name][None]


def largest_error(name: str, lengths: list[int]) -> float:
    """Largest difference to the exact sum at any step, for values of at most 1 in size."""
    alpha_1T, rho_1T = vectors(name)
    exact_TT = attention_rows(alpha_1T.double(), rho_1T.double(), 0, T)[0]
    generator = torch.Generator().manual_seed(1)
    v_BTKD = torch.randint(0, 2, (len(lengths), T, 2, D), generator=generator).float() * 2 - 1
    states = DecayingSums(prepare_pattern(alpha_1T, rho_1T), [1], v_BTKD[:, : max(lengths)], lengths)
    worst = 0.0
    for step in range(T - max(lengths)):
        positions = [length + step for length in lengths]
        y_BSD = states.step(torch.stack([v_BTKD[b, i] for b, i in enumerate(positions)]), positions)
        for b, i in enumerate(positions):
            expected_D = exact_TT[i, : i + 1] @ v_BTKD[b, : i + 1, 1].double()
            worst = max(worst, (y_BSD[b, 0].double() - expected_D).abs().max().item())
    return worst


@pytest.mark.parametrize("name", DECAYS)
def test_the_bound_holds(name: str) -> None:
    alpha_1T, rho_1T = vectors(name)
    bound = certified_error(prepare_pattern(alpha_1T, rho_1T)).item()
    assert largest_error(name, [1]) <= bound


@pytest.mark.parametrize("name", ["exponential", "constant", "two scales"])
def test_smooth_patterns_are_certified_to_1e_5(name: str) -> None:
    alpha_1T, rho_1T = vectors(name)
    assert certified_error(prepare_pattern(alpha_1T, rho_1T)).item() < 1e-5


def test_a_rough_pattern_is_not_certified() -> None:
    alpha_1T, rho_1T = vectors("rough")
    assert certified_error(prepare_pattern(alpha_1T, rho_1T)).item() > 0.01


@pytest.mark.parametrize("lengths", [[64, 65, 66], [1, 300, 130]], ids=str)
def test_prompts_that_end_before_in_and_behind_the_band(lengths: list[int]) -> None:
    assert largest_error("two scales", lengths) < 2e-6
