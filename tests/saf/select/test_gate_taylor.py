"""Gate-Taylor importance against explicit gates."""

import pytest
import torch
from torch import Tensor, nn

from saf_titan.saf.select.gate_taylor import gate_taylor_scores

B, T, H, D, C = 4, 5, 3, 2, 6


class Inner(nn.Module):
    """Stands in for attention: any function of its input; `gate_BH` scales the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_BH: Tensor | None = None

    def forward(self, v_BTHD: Tensor) -> Tensor:
        mixed = v_BTHD.cumsum(1).tanh()
        return mixed if self.gate_BH is None else mixed * self.gate_BH[:, None, :, None]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wv, self.wo = nn.Linear(C, H * D), nn.Linear(H * D, C)
        self.inner_attention = Inner()
        self.num_heads = H
        self.live_heads = self.output_heads = tuple(range(H))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wo(self.inner_attention(self.wv(x).unflatten(-1, (H, D))).flatten(2))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer())
    with torch.no_grad():
        model[1].wo.weight[:, :D] = 0
    return model


def losses(model: nn.Sequential, x: Tensor) -> Tensor:
    return model(x).square().mean((1, 2))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_are_the_gradients_of_gates(model: nn.Sequential, batch_size: int) -> None:
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    actual = gate_taylor_scores(list(model), x.split(batch_size), lambda part: losses(model, part))
    gates = [torch.ones(B, H, requires_grad=True) for _ in model]
    for layer, gate in zip(model, gates, strict=True):
        layer.inner_attention.gate_BH = gate
    losses(model, x).sum().backward()
    expected = torch.stack([gate.grad.abs().mean(0) for gate in gates]).double()
    torch.testing.assert_close(actual, expected / expected.norm(dim=1, keepdim=True), rtol=1e-5, atol=1e-8)


def test_a_head_that_adds_nothing_scores_zero(model: nn.Sequential) -> None:
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    scores = gate_taylor_scores(list(model), [x], lambda part: losses(model, part))
    assert scores[1, 0] == 0
    torch.testing.assert_close(scores.norm(dim=1), torch.ones(2, dtype=torch.float64))


def test_hooks_are_removed_and_missing_gradients_are_an_error(model: nn.Sequential) -> None:
    with pytest.raises(ValueError, match="at least one sequence"):
        gate_taylor_scores(list(model), [], lambda part: losses(model, part))
    with pytest.raises(ValueError, match="gradient through every attention layer"):
        gate_taylor_scores(list(model), [torch.ones(1, T, C)], lambda part: losses(model[:1], part))
    assert not any(module._forward_hooks for module in model.modules())
