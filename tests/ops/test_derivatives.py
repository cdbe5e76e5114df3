"""Derivatives that the operators do not have are one clear error; those that they have are right, compiled too.

Covers ops/static_mix/gradient.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from saf_titan.ops import mixed_attention, prepare_pattern, static_mix
from saf_titan.ops.dense_mix import dense_mix
from saf_titan.ops.pattern import PATHS
from saf_titan.ops.static_mix import compiled
from tests.ops.pattern_families import make_families

T = 24


def layer_output(v: Tensor, q: Tensor | None = None) -> Tensor:
    torch.manual_seed(0)
    q, k = torch.randn(1, T, 2, 4) if q is None else q, torch.randn(1, T, 2, 4)
    pattern = prepare_pattern(*make_families(("power1",), T))
    return mixed_attention(q, k, v, live_heads=(0, 2), static_heads=(1,), pattern=pattern)


def test_second_derivatives_of_the_pattern_are_refused() -> None:
    alpha, rho = (x.requires_grad_() for x in make_families(("power1",), T))
    v = torch.randn(1, T, 1, 4, generator=torch.Generator().manual_seed(0))
    y = static_mix(v, prepare_pattern(alpha, rho))
    (dalpha,) = torch.autograd.grad(y.square().sum(), alpha, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"second derivatives .* alpha and rho .* static_mix_naive"):
        torch.autograd.grad(dalpha.square().sum(), alpha)


# torch itself, on the first use of forward mode
LOADS_DECOMPOSITIONS = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")


@LOADS_DECOMPOSITIONS
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda v: static_mix(v, prepare_pattern(*make_families(("power1",) * 3, T))), id="static_mix"),
        pytest.param(lambda v: dense_mix(v, torch.rand(3, T, T)), id="dense_mix"),
        pytest.param(layer_output, id="mixed_attention"),
        pytest.param(lambda q: layer_output(torch.ones(1, T, 3, 4), q[:, :, :2]), id="queries"),
    ],
)
def test_forward_mode_is_refused(run: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(1, T, 3, 4)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        run(forward_ad.make_dual(x, x))
    with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        torch.func.jvp(run, (x,), (x,))
    # inputs without a tangent are fine
    with forward_ad.dual_level():
        run(x)


@LOADS_DECOMPOSITIONS
def test_forward_mode_through_the_pattern_is_refused() -> None:
    alpha, rho = make_families(("power1",), T)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        static_mix(torch.randn(1, T, 1, 4), prepare_pattern(forward_ad.make_dual(alpha, alpha), rho))


def test_the_gradient_of_the_pattern_is_the_same_compiled() -> None:
    torch._dynamo.reset()
    pattern = prepare_pattern(*make_families(("power1", "sink16-local"), T))
    dy, v = torch.randn(2, 2, T, 2, 4).unbind(0)

    def direct(dy: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.saf_titan.static_mix_pattern_grad(dy, v, *pattern, None)

    in_graph = torch.compile(direct, backend="aot_eager", fullgraph=True)
    for actual, expected in zip(in_graph(dy, v), direct(dy, v), strict=True):
        assert torch.equal(actual, expected)
        assert actual.stride() == expected.stride()
    # its own derivative is refused: eagerly when it is asked for, in a graph when the graph is made
    v.requires_grad_()
    with pytest.raises(NotImplementedError, match="static_mix_naive"):
        direct(dy, v)[0].sum().backward()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="static_mix_naive"):
        in_graph(dy, v)


@pytest.mark.parametrize("path", [*PATHS, "naive", "fft by torch"])
def test_every_path_gives_the_same_numbers_compiled(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    if path == "fft by torch":
        monkeypatch.setattr(compiled, "_extension", None)
    pattern = prepare_pattern(*make_families(("uniform", "uniform"), 150))
    v, dy = torch.randn(2, 2, 150, 2, 4).unbind(0)

    def mix(v: Tensor) -> Tensor:
        return static_mix(v, pattern, backend=path.split()[0])

    results = []
    for run in (mix, torch.compile(mix, backend="aot_eager", fullgraph=True)):
        leaf = v.clone().requires_grad_()
        y = run(leaf)
        results.append((y.detach(), *torch.autograd.grad(y, leaf, dy)))
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


# opcheck itself reads the gradient of the tensors it clones
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_contract_of_the_gradient_of_the_pattern() -> None:
    pattern = prepare_pattern(*make_families(("power1", "sink16-local"), T))
    inputs = (torch.randn(2, T, 2, 4), torch.randn(2, T, 2, 4), *pattern, None)
    torch.library.opcheck(torch.ops.saf_titan.static_mix_pattern_grad.default, inputs)
