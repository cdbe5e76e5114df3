"""Rates, decays and resume of the circuit optimizer."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from saf_titan.circuits.optimizer import CircuitOptimizers, CircuitSchedules
from saf_titan.config.circuit_groups import CircuitGroup

LR, DECAY = 1e-2, 0.1
FOUR_TIMES = CircuitGroup(match="qk", factor=4.0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(4, 4, bias=False) for _ in range(4))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_norm = nn.LayerNorm(4, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block()])
        self.lm_head = nn.Linear(4, 4, bias=False)


def build(
    model: nn.Module,
    *,
    name: str = "AdamW",
    lr: float = LR,
    decay: float = DECAY,
    rule: CircuitGroup = FOUR_TIMES,
    implementation: str = "for-loop",
    scale_weight_decay: bool = False,
) -> tuple[CircuitOptimizers, CircuitSchedules]:
    specific = {"betas": (0.9, 0.95), "eps": 1e-8} if name == "AdamW" else {"momentum": 0.9}
    optimizers = CircuitOptimizers.Config(
        name=name,
        hyper_parameters={"lr": lr, "weight_decay": decay, **specific},
        rules=(rule,),
        implementation=implementation,
    ).build(model_parts=[model])
    schedules = CircuitSchedules.Config(
        warmup_steps=2, decay_type="cosine", scale_weight_decay=scale_weight_decay
    ).build(optimizers=optimizers, training_steps=10)
    return optimizers, schedules


def decay_of_a_zero_gradient_step(model: nn.Module, optimizers: CircuitOptimizers, matrix: str) -> float:
    weight = getattr(model.layers[0].attention, matrix).weight
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.step()
    return float((weight.detach() / before).mean())


def test_ratio_multiplies_the_scheduled_rate_at_every_step() -> None:
    rule = CircuitGroup(match="qk", factor=4.0, schedule="hold_then_ramp", hold_steps=3, ramp_steps=2)
    optimizers, schedules = build(Model(), rule=rule)
    ratios = []
    for _ in range(8):
        rates = schedules.get_metrics()
        ratios.append(rates["lr/qk"] / rates["lr/ov"])
        assert rates["lr/other"] == rates["lr/ov"]
        optimizers.step()
        schedules.step()
    assert ratios == pytest.approx([4.0, 4.0, 4.0, 4.0, 2.5, 1.0, 1.0, 1.0])


def test_between_two_steps_no_rate_passes_the_peak() -> None:
    _, schedules = build(Model())
    steps = [0.25 * quarter for quarter in range(1, 41)]
    rates = []
    for step in steps:
        schedules.set_progress(step)
        rates.append(schedules.get_metrics()["lr/ov"])
    peak = schedules.schedulers[0].base_lrs[-1]
    assert max(rates) <= peak


def test_decay_per_step_does_not_depend_on_the_ratio() -> None:
    model = Model()
    optimizers, schedules = build(model)
    rate = schedules.get_metrics()["lr/ov"]
    for matrix in ("wq", "wv"):
        assert decay_of_a_zero_gradient_step(model, optimizers, matrix) == pytest.approx(1 - rate * DECAY)


def test_decay_scales_with_the_rate_on_request() -> None:
    model = Model()
    optimizers, schedules = build(model, scale_weight_decay=True)
    rate = schedules.get_metrics()["lr/ov"]
    assert decay_of_a_zero_gradient_step(model, optimizers, "wq") == pytest.approx(1 - 4 * rate * DECAY)


def test_vectors_do_not_decay() -> None:
    optimizers, _ = build(Model())
    (no_decay,) = [
        live
        for group, live in zip(optimizers.groups, optimizers.param_group_list, strict=True)
        if group.name == "no_decay"
    ]
    assert no_decay["weight_decay"] == 0.0


def test_sgd_is_available() -> None:
    optimizers, _ = build(Model(), name="SGD")
    assert isinstance(optimizers.optimizers[0], torch.optim.SGD)


def test_config_wins_over_the_checkpoint_and_the_difference_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    trained, schedules = build(Model())
    trained.step()
    schedules.step()
    state, schedule_state = trained.state_dict(), schedules.state_dict()

    resumed, resumed_schedules = build(Model(), lr=3 * LR, decay=0.3)
    with caplog.at_level(logging.WARNING):
        # torchtitan loads the scheduler before the optimizer, which then overwrites the rates
        resumed_schedules.load_state_dict(schedule_state)
        resumed.load_state_dict(state)
    resumed_schedules.apply()
    assert resumed_schedules.get_metrics()["lr/ov"] == pytest.approx(3 * schedules.get_metrics()["lr/ov"])
    for group, live in zip(resumed.groups, resumed.param_group_list, strict=True):
        expected = {"qk": 0.3 / 4, "no_decay": 0.0}.get(group.name, 0.3)
        assert live["weight_decay"] == pytest.approx(expected), group.name
        assert live["lr"] == pytest.approx(resumed_schedules.get_metrics()[f"lr/{group.name}"])
    messages = [record.getMessage() for record in caplog.records if "weight_decay" in record.getMessage()]
    assert len(messages) == 2
    assert "0.3 in the config and 0.1 in the checkpoint" in messages[0]


def test_unchanged_resume_is_silent_even_while_the_ratio_moves(caplog: pytest.LogCaptureFixture) -> None:
    ramp = CircuitGroup(match="qk", factor=4.0, schedule="linear", ramp_steps=5)
    trained, schedules = build(Model(), rule=ramp)
    for _ in range(3):
        trained.step()
        schedules.step()
    resumed, resumed_schedules = build(Model(), rule=ramp)
    with caplog.at_level(logging.WARNING):
        resumed_schedules.load_state_dict(schedules.state_dict())
        resumed.load_state_dict(trained.state_dict())
    resumed_schedules.apply()
    assert not caplog.records
    for live, original in zip(resumed.param_group_list, trained.param_group_list, strict=True):
        assert live["lr"] == original["lr"]
        assert live["weight_decay"] == original["weight_decay"]


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_weights_move_by_the_factor_whatever_computes_the_step(name: str, implementation: str) -> None:
    """Under equal gradients the steps of two circuits differ by the factor alone, at every step of its schedule."""
    rule = CircuitGroup(match="qk", factor=4.0, schedule="linear", factor_end=2.0, ramp_steps=4)
    model = Model()
    matrices = model.layers[0].attention
    optimizers, schedules = build(model, name=name, rule=rule, decay=0.0, implementation=implementation)
    generator = torch.Generator().manual_seed(1)
    for factor in (4.0, 3.5, 3.0, 2.5, 2.0, 2.0):
        gradient = torch.randn(4, 4, generator=generator)
        before = {name: getattr(matrices, name).weight.detach().clone() for name in ("wq", "wv")}
        for parameter in model.parameters():
            parameter.grad = gradient.clone() if parameter.ndim == 2 else torch.zeros_like(parameter)
        optimizers.step()
        moved = {name: getattr(matrices, name).weight.detach() - weight for name, weight in before.items()}
        # moments do not know the rate, so both optimizers are linear in it
        torch.testing.assert_close(moved["wq"], factor * moved["wv"], rtol=2e-4, atol=1e-6)
        schedules.step()
