"""Attention of a layer in a model of one's own, against the definition in float64."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from saf_titan.heads.kv_groups import UnusedHeads
from saf_titan.ops.pattern import attention_rows
from saf_titan.own_loop import FreezableHeads

B, T, C, H, D = 2, 12, 20, 4, 6
KINDS = ("fused", "separate", "grouped", "grouped fused")


def layer(kind: str, *, bias: bool = True) -> tuple[FreezableHeads, tuple[nn.Linear, ...]]:
    torch.manual_seed(0)
    K = 2 if "grouped" in kind else H
    widths = [(H + 2 * K) * D] if "fused" in kind else [H * D, K * D, K * D]
    heads = FreezableHeads(H, num_kv_heads=K, scale=0.3)
    return heads, tuple(nn.Linear(C, width, bias=bias) for width in widths)


def projection(linears: tuple[nn.Linear, ...]) -> nn.Linear | tuple[nn.Linear, nn.Linear, nn.Linear]:
    return linears[0] if len(linears) == 1 else (linears[0], linears[1], linears[2])


def turned(q_BTUD: Tensor, k_BTKD: Tensor) -> tuple[Tensor, Tensor]:
    """Something that depends on the position alone, as rotations do."""
    angle_T111 = torch.arange(T)[:, None, None] / 5
    return q_BTUD * angle_T111.cos(), k_BTKD * angle_T111.cos()


def expected(
    heads: FreezableHeads, linears: tuple[nn.Linear, ...], x_BTC: Tensor, p_HTT: dict[int, Tensor], *, rotate: bool
) -> Tensor:
    """Every head by its own matrix, float64: `p_HTT` has those of static heads."""
    K = heads.num_kv_heads
    joined = torch.cat([linear.double()(x_BTC.double()) for linear in linears], dim=-1)
    q, k, v = (x.unflatten(-1, (-1, D)) for x in joined.split([H * D, K * D, K * D], dim=-1))
    if rotate:
        q, k = turned(q, k)
    ys = []
    for head in range(H):
        kv_head = head * K // H
        scores_BTT = 0.3 * q[:, :, head] @ k[:, :, kv_head].mT
        probs_BTT = scores_BTT.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
        ys.append(p_HTT.get(head, probs_BTT) @ v[:, :, kv_head])
    return torch.cat(ys, dim=-1)


@pytest.mark.parametrize("way", ["live", "static", "whole group", "all", "pruned"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients(kind: str, way: str) -> None:
    heads, linears = layer(kind)
    static = {"live": (), "static": (1, 2), "whole group": (2, 3), "all": (0, 1, 2, 3), "pruned": (0, 1, 3)}[way]
    alpha_ST, rho_ST = torch.randn(2, len(static), T + 3, generator=torch.Generator().manual_seed(1))
    if way == "pruned":
        heads.set_pruned(static)
    elif static:
        heads.set_static(static, alpha_ST, rho_ST)
    rows_STT = attention_rows(alpha_ST.double(), rho_ST.double(), 0, T) if static else []
    p_HTT = {head: torch.zeros(T, T).double() if way == "pruned" else rows_STT[s] for s, head in enumerate(static)}
    x_BTC = torch.randn(B, T, C, generator=torch.Generator().manual_seed(2), requires_grad=True)
    given = torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(3))

    y_BTC = heads(x_BTC, projection(linears), rotate=turned)
    (y_BTC * given).sum().backward()
    found = [x_BTC.grad, *(parameter.grad for linear in linears for parameter in linear.parameters())]
    x_BTC.grad = None
    _, again = layer(kind)
    exact_BTC = expected(heads, again, x_BTC, p_HTT, rotate=True)
    torch.testing.assert_close(y_BTC.double(), exact_BTC, rtol=0, atol=1e-5)
    (exact_BTC * given).sum().backward()
    wanted = [x_BTC.grad, *(parameter.grad for linear in again for parameter in linear.parameters())]
    for gradient, exact in zip(found, wanted, strict=True):
        gradient = torch.zeros_like(exact) if gradient is None else gradient
        torch.testing.assert_close(gradient.double(), exact.double(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_unused_rows_take_no_part(kind: str) -> None:
    heads, linears = layer(kind)
    heads.set_static((2, 3), torch.zeros(2, T), torch.zeros(2, T))
    x_BTC = torch.randn(B, T, C)
    before = heads(x_BTC, projection(linears))
    heads.projections = linears
    K = heads.num_kv_heads
    assert heads.unused() == UnusedHeads(q=(2, 3), k=(1,) if K == 2 else (2, 3), v=(), o=())
    rows = heads.unused_rows()
    assert sum(len(index) for parameter, index in rows if parameter.dim() == 2) == (2 + K // 2) * D
    with torch.no_grad():
        for parameter, index in rows:
            parameter[index] = torch.nan
    assert torch.equal(heads(x_BTC, projection(linears)), before)


def test_without_static_heads_it_leaves_no_trace() -> None:
    heads, _ = layer("fused")
    assert not list(heads.parameters())
    assert not heads.state_dict()
    assert heads.load_state_dict({}) is not None


def test_mistakes_are_named() -> None:
    x_BTC = torch.randn(B, T, C)
    with pytest.raises(ValueError, match="num_kv_heads = 3 must divide num_heads = 4"):
        FreezableHeads(4, num_kv_heads=3)
    heads = FreezableHeads(H)
    with pytest.raises(ValueError, match=r"projections with \[70\] rows do not hold 4 query heads and 4 kv heads"):
        heads(x_BTC, nn.Linear(C, 70))
    with pytest.raises(ValueError, match=r"must be torch.nn.Linear, one or three of them, got Identity"):
        heads(x_BTC, nn.Identity())
    with pytest.raises(ValueError, match=r"matrices work only in runs of saf_titan.train"):
        heads.set_dense((0,), torch.eye(T)[None])
    heads.set_static((0,), torch.zeros(1, T - 1), torch.zeros(1, T - 1))
    with pytest.raises(ValueError, match=f"T={T} exceeds T_fit={T - 1}"):
        heads(x_BTC, nn.Linear(C, 3 * H * D))


def test_no_torchtitan_comes_with_it() -> None:
    code = "import sys, saf_titan.own_loop; print(any(name.startswith('torchtitan') for name in sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "False\n"
