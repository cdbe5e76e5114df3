"""Zeroed rows are a fixed point of the optimizer, and installation touches nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from saf_titan.heads.kv_groups import UnusedHeads, unused_heads
from saf_titan.saf.calibrate.calibration import CalibrationRecord
from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.install.compensate import NewWeights
from saf_titan.saf.install.install import install, replace_weights, zero_unused_weights
from saf_titan.saf.plan.plan import StaticHead, StaticPlan

H, D, T = 4, 3, 5
C = H * D


class Projections(nn.Module):
    def __init__(self, num_kv_heads: int) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.wq = nn.Linear(C, C, bias=False)
        self.wk, self.wv = (nn.Linear(C, num_kv_heads * D, bias=False) for _ in range(2))

    def unused_heads(self, static: Sequence[int], *, frees_values: bool) -> UnusedHeads:
        return unused_heads(static, num_heads=H, num_kv_heads=self.num_kv_heads, frees_values=frees_values)

    def head_rows(self, heads: tuple[int, ...]) -> Tensor:
        return (torch.tensor(heads, dtype=torch.int64)[:, None] * D + torch.arange(D)).flatten()


class Attention(nn.Module):
    """Queries and keys of live heads only, as the real layer computes them."""

    def __init__(self, num_kv_heads: int = H) -> None:
        super().__init__()
        self.qkv_linear = Projections(num_kv_heads)
        self.wo = nn.Linear(num_kv_heads * D, C, bias=False)
        self.installed: tuple[int, ...] = ()

    @property
    def static_rows(self) -> tuple[Tensor, Tensor]:
        """Dead rows of wq and wk."""
        qkv = self.qkv_linear
        return qkv.head_rows(self.installed), qkv.head_rows(qkv.unused_heads(self.installed, frees_values=False).k)

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None:
        self.installed = heads
        assert alpha_ST.shape == rho_ST.shape == (len(heads), T)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv_linear
        q, k = (projection(x).unflatten(-1, (-1, D)) for projection in (qkv.wq, qkv.wk))
        live = [head for head in range(H) if head not in self.installed]
        k = k.repeat_interleave(H // qkv.num_kv_heads, dim=1)
        scores = (q[:, live] * k[:, live]).sum() if live else 0.0
        return scores + self.wo(qkv.wv(x)).square().sum()


def plan(*slots: tuple[int, int]) -> StaticPlan:
    return StaticPlan(
        heads=tuple(
            StaticHead(
                layer=layer,
                head=head,
                pattern=CompactPattern(torch.zeros(T), torch.zeros(T)),
                score=0.0,
                fit_kl=0.0,
                rank=rank,
                step=1,
            )
            for rank, (layer, head) in enumerate(slots)
        ),
        skipped=(),
        step=1,
        selector="variance",
        content="mean",
        rate=0.25,
        T_fit=T,
        record=CalibrationRecord(num_sequences=2, seq_len=T),
    )


def steps(model: nn.ModuleList, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        x = torch.randn(7, C)
        sum(attention(x) for attention in model).backward()
        optimizer.step()


def moments(optimizer: torch.optim.Optimizer, weight: Tensor) -> Iterator[Tensor]:
    return (value for value in optimizer.state[weight].values() if getattr(value, "shape", ()) == weight.shape)


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("num_kv_heads", [H, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_and_moments_stay_zero_for_fifty_steps(name: str, num_kv_heads: int) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([Attention(num_kv_heads), Attention(num_kv_heads)])
    optimizer = OPTIMIZERS[name](model.parameters())
    steps(model, optimizer, 3)
    # one layer partly static, of one group entirely; the other layer as a whole: its gradients are absent, not zero
    chosen = plan(*((0, head) for head in (0, 1, 2)), *((1, head) for head in range(H)))
    install(list(model), chosen)
    zero_unused_weights(list(model), chosen, optimizer.state)
    steps(model, optimizer, 50)
    for attention in model:
        qkv = attention.qkv_linear
        for projection, rows in zip((qkv.wq, qkv.wk), attention.static_rows, strict=True):
            assert len(rows)
            live = torch.ones(len(projection.weight), dtype=torch.bool)
            live[rows] = False
            for tensor in (projection.weight, *moments(optimizer, projection.weight)):
                assert (tensor[rows] == 0).all()
                assert (tensor[live].abs().amax(-1) > 0).all()


def test_everything_else_is_untouched() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([Attention()])
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    steps(model, optimizer, 2)
    identities = [id(parameter) for parameter in model.parameters()]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    chosen = plan((0, 0), (0, 3))
    install(list(model), chosen)
    zero_unused_weights(list(model), chosen, optimizer.state)
    assert [id(parameter) for parameter in model.parameters()] == identities
    rows = model[0].qkv_linear.head_rows((0, 3))
    for name, parameter in model.named_parameters():
        expected = before[name].clone()
        if name.endswith(("wq.weight", "wk.weight")):
            expected[rows] = 0
        assert torch.equal(parameter, expected), name
    assert model[0].installed == (0, 3)


def test_value_rows_are_replaced_and_put_back() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([Attention()])
    weight = model[0].qkv_linear.wv.weight
    before = weight.detach().clone()
    new_DC = torch.randn(D, C)
    overwritten = replace_weights(list(model), {(0, 2): NewWeights("v", new_DC)})
    rows = model[0].qkv_linear.head_rows((2,))
    assert torch.equal(weight[rows], new_DC)
    untouched = torch.ones(C, dtype=torch.bool)
    untouched[rows] = False
    assert torch.equal(weight[untouched], before[untouched])
    overwritten.restore()
    assert torch.equal(weight, before)


def test_output_columns_are_replaced_and_put_back() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([Attention()])
    weight = model[0].wo.weight
    before = weight.detach().clone()
    new_CD = torch.randn(C, D)
    overwritten = replace_weights(list(model), {(0, 1): NewWeights("o", new_CD)})
    columns = model[0].qkv_linear.head_rows((1,))
    assert torch.equal(weight[:, columns], new_CD)
    others = [column for column in range(weight.shape[1]) if column not in columns.tolist()]
    assert torch.equal(weight[:, others], before[:, others])
    overwritten.restore()
    assert torch.equal(weight, before)
