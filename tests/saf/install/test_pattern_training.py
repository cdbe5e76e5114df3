"""Patterns learn by the gradient of the dense definition."""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops import prepare_pattern, static_mix, static_mix_naive
from saf_titan.saf.install.pattern_training import PatternTraining
from tests.saf.install.test_install import T, plan


class Layer:
    """One layer of static heads alone."""

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None:
        self.pattern = prepare_pattern(alpha_ST, rho_ST)

    def pattern_logits(self) -> tuple[Tensor, Tensor]:
        return self.pattern.alpha_HT, self.pattern.rho_HT


def test_updates_are_those_of_adamw_on_the_dense_definition() -> None:
    torch.manual_seed(0)
    values = [torch.randn(2, T, 2, 3) for _ in range(4)]
    target = torch.randn(2, T, 2, 3)
    layer, chosen = Layer(), plan((0, 0), (0, 1))
    training = PatternTraining([layer], chosen, lr=0.1, group=None)
    alpha, rho = (torch.zeros(2, T, dtype=torch.float64, requires_grad=True) for _ in range(2))
    oracle = torch.optim.AdamW([alpha, rho], lr=0.1, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for v in values:
        loss = (static_mix(v, layer.pattern) - target).square().mean()
        loss.backward()
        training.step()
        oracle.zero_grad()
        dense = (static_mix_naive(v.double(), alpha, rho) - target).square().mean()
        dense.backward()
        oracle.step()
        losses.append((loss.item(), dense.item()))
    for ours, theirs in losses:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    vectors = zip(*(head.pattern.vectors for head in training.plan.layers()[0]), strict=True)
    got_alpha, got_rho = (torch.stack(vectors_T).double() for vectors_T in vectors)
    torch.testing.assert_close(got_alpha, alpha.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(got_rho, rho.detach(), rtol=0, atol=1e-4)


def test_moments_survive_a_round_trip() -> None:
    torch.manual_seed(0)
    layer, chosen = Layer(), plan((0, 0), (0, 1))
    training = PatternTraining([layer], chosen, lr=0.1, group=None)
    static_mix(torch.randn(1, T, 2, 3), layer.pattern).square().sum().backward()
    training.step()
    again = PatternTraining([Layer()], training.plan, lr=0.1, group=None)
    again.load_moments(training.moments())
    for name, value in training.moments().items():
        assert torch.equal(value, again.moments()[name]), name


def test_a_step_without_gradients_changes_nothing() -> None:
    chosen = plan((0, 0), (0, 1))
    training = PatternTraining([Layer()], chosen, lr=0.1, group=None)
    training.step()
    assert training.plan.digest == chosen.digest
    assert training.moments() == {}
