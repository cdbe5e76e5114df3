"""A freeze in a loop of one's own: what it changes, what stays, and what must hold before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

from saf_titan.own_loop import FreezableHeads, Freezer, freezer
from saf_titan.saf.plan.plan import StaticPlan

T, V, H, D = 16, 20, 4, 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(H * D)
        self.c_attn, self.c_proj = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.heads = FreezableHeads(H)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return x_BTC + self.c_proj(self.heads(self.norm(x_BTC), self.c_attn))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, H * D), nn.Linear(H * D, V)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTC = self.embed(ids_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.head(x_BTC)


def ids(seed: int) -> Tensor:
    return torch.randint(V, (4, T), generator=torch.Generator().manual_seed(seed))


BATCHES = [ids(100), ids(101)]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, dtype: torch.dtype | None = None) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    batch_BT = ids(seed)
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = F.cross_entropy(model(batch_BT)[:, :-1].flatten(0, 1).float(), batch_BT[:, 1:].flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


def dead_rows(model: Model, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Weights and moments of queries and keys of the static heads."""
    found = []
    for layer in model.layers:
        rows = [row for head in layer.heads.static_heads for row in range(head * D, (head + 1) * D)]
        rows += [H * D + row for row in rows]
        for parameter in (layer.c_attn.weight, layer.c_attn.bias):
            state = optimizer.state[parameter]
            found += [tensor[rows] for tensor in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])]
    return found


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_dead_rows_stay_zero_in_training(dtype: torch.dtype | None) -> None:
    model = Model()
    optimizer = adam(model)
    freezer = Freezer(model, optimizer, rate=0.5, max_fit_kl=9.0)
    for seed in range(2):
        step(model, optimizer, seed, dtype)
    live = model.layers[0].c_attn.weight.detach().clone()
    plan = freezer.freeze(BATCHES, step=2)
    assert len(plan.heads) == 4
    assert plan.step == 2
    assert freezer.plan is not None
    assert freezer.plan.digest == StaticPlan.from_bytes(freezer.plan.to_bytes()).digest
    assert str(freezer).startswith("4 of 8 heads static: L")
    assert all(not rows.any() for rows in dead_rows(model, optimizer))
    kept = [row for head in model.layers[0].heads.live_heads for row in range(head * D, (head + 1) * D)]
    assert torch.equal(model.layers[0].c_attn.weight[kept], live[kept])
    for seed in range(2, 5):
        step(model, optimizer, seed, dtype)
    assert all(not rows.any() for rows in dead_rows(model, optimizer))
    assert not torch.equal(model.layers[0].c_attn.weight[kept], live[kept])
    assert model.training


def test_saved_and_resumed_to_the_last_bit(tmp_path: Path) -> None:
    """With what torch.load takes without unpickling code, before and after the freeze."""
    model = Model()
    optimizer = adam(model)
    freezer = Freezer(model, optimizer, rate=0.5, max_fit_kl=9.0)
    step(model, optimizer, 0)
    assert not [name for name in model.state_dict() if "heads" in name]
    freezer.freeze(BATCHES)
    step(model, optimizer, 1)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "ckpt.pt")
    step(model, optimizer, 2)

    other = Model()
    its_optimizer = adam(other)
    loaded = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    other.load_state_dict(loaded["model"])
    its_optimizer.load_state_dict(loaded["optimizer"])
    resumed = Freezer(other, its_optimizer, rate=0.75, max_fit_kl=9.0)
    assert resumed.plan is not None
    assert freezer.plan is not None
    assert resumed.plan.digest == freezer.plan.digest
    step(other, its_optimizer, 2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name

    plan = resumed.freeze(BATCHES, step=3)
    assert {head.slot for head in plan.heads} > {head.slot for head in freezer.plan.heads}
    assert len(plan.heads) == 6
    ordinary = Model().state_dict()
    other.load_state_dict(ordinary)
    assert resumed.plan is None


def test_a_frozen_checkpoint_fails_in_a_model_without_these_layers() -> None:
    model = Model()
    Freezer(model, adam(model), rate=0.25, max_fit_kl=9.0).freeze(BATCHES)
    stock = Model()
    for layer in stock.layers:
        layer.heads = nn.Identity()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*heads.static_heads"):
        stock.load_state_dict(model.state_dict())


def test_a_plan_of_another_layer_is_refused() -> None:
    model = Model()
    Freezer(model, adam(model), rate=1.0, max_fit_kl=9.0).freeze(BATCHES)
    with pytest.raises(ValueError, match="has head L0H3, and the layer has 2 heads"):
        FreezableHeads(2).load_state_dict(model.layers[0].heads.state_dict())


@pytest.mark.parametrize("content", ["uniform", "prune"])
def test_other_contents(content: str) -> None:
    model = Model()
    optimizer = adam(model)
    freezer = Freezer(model, optimizer, rate=0.5, content=content, max_fit_kl=9.0)
    step(model, optimizer, 0)
    freezer.freeze(BATCHES)
    before = model(BATCHES[0])
    copy = Model()
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(BATCHES[0]), before)
    step(model, optimizer, 1)
    assert all(not rows.any() for rows in dead_rows(model, optimizer))


def test_in_a_compiled_model() -> None:
    """The compiler is told that the layers have changed."""
    torch._dynamo.reset()
    model = Model()
    optimizer = adam(model)
    compiled = torch.compile(model, backend="eager")
    freezer = Freezer(compiled, optimizer, rate=0.5, max_fit_kl=9.0)
    step(compiled, optimizer, 0)
    freezer.freeze(BATCHES)
    with torch.no_grad():
        torch.testing.assert_close(compiled(BATCHES[0]), model(BATCHES[0]))
    step(compiled, optimizer, 1)
    assert all(not rows.any() for rows in dead_rows(model, optimizer))


def test_what_is_refused() -> None:
    model = Model()
    optimizer = adam(model)
    with pytest.raises(ValueError, match="the model has no FreezableHeads"):
        Freezer(nn.Linear(2, 2), optimizer)
    with pytest.raises(ValueError, match="rate = 2"):
        Freezer(model, optimizer, rate=2.0)
    with pytest.raises(ValueError, match=r'selector = "output_error" works only in runs of saf_titan.train'):
        Freezer(model, optimizer, selector="output_error")
    freezer = Freezer(model, optimizer, rate=0.25, content="sharp", max_fit_kl=9.0)
    with pytest.raises(ValueError, match="sharp needs a T x T matrix for each head"):
        freezer.freeze(BATCHES)
    assert freezer.plan is None
    model(BATCHES[0]).sum().backward()
    with pytest.raises(ValueError, match="there are gradients"):
        freezer.freeze(BATCHES)


def test_sharded_parameters_are_refused(tmp_path: Path) -> None:
    model = Model()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(ValueError, match="the parameters are sharded, for example by FSDP"):
            Freezer(model, adam(model))
    finally:
        dist.destroy_process_group()


def test_a_device_without_static_mixing_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    reason = "needs the package triton on a GPU, and it is not installed"
    monkeypatch.setattr(freezer, "device_obstacle", lambda backend, device_type: reason)
    with pytest.raises(ValueError, match=f"static mixing {reason}"):
        Freezer(model, adam(model))
