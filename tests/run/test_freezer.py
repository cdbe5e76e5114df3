"""When a freeze is due, what it must have seen by then, and what it leaves when it is undone or fails.

Covers saf/plan/freeze_state.py.
"""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

from saf_titan.config.own_sections import SafSection
from saf_titan.run.calibration_data import CalibrationData
from saf_titan.run.freezer import Freezer
from saf_titan.saf.install.compensate import NewWeights
from saf_titan.saf.install.install import Overwritten
from saf_titan.saf.plan.schedule import FixedSchedule, LossBudget, LossBudgetSchedule, Schedule
from tests.layers.test_attention import C, D, H, T, attention


def freezer(
    *, schedule: Schedule | None = None, **settings: object
) -> tuple[nn.ModuleList, torch.optim.Optimizer, Freezer[torch.Tensor]]:
    model = nn.ModuleList([attention()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    section = SafSection(**{"enable": True, "rate": 0.25, **settings})  # type: ignore[arg-type]
    made = Freezer[torch.Tensor](
        model,
        optimizer,
        settings=section,
        schedule=schedule or FixedSchedule([(4, 0.25)]),
        forward=lambda batch: model[0](batch, None),
        sequence_losses=lambda batch: (model[0](batch, None) - 1).square().mean((1, 2)),
        group=None,
    )
    return model, optimizer, made


def test_a_freeze_is_due_from_its_step_on() -> None:
    _, _, made = freezer()
    assert [made.rate_due(step) for step in (0, 3, 4, 9)] == [None, None, 0.25, 0.25]


def test_the_gradient_selector_must_have_seen_a_step() -> None:
    model, optimizer, made = freezer(selector="qk_gradient")
    assert made.rate_due(3) is None
    with pytest.raises(ValueError, match=r"checkpoint of step 4, where .* set saf.step to about 24"):
        made.rate_due(4)
    # as on a resume: the average is part of the state
    model[0](torch.randn(2, T, C), None).square().sum().backward()
    optimizer.step()
    assert made.rate_due(4) == 0.25
    state = made.state()
    assert state is not None
    _, _, resumed = freezer(selector="qk_gradient")
    resumed.load_state(state)
    assert resumed.rate_due(4) == 0.25


def loss_budget(*, budget: float, num_heads: int = H) -> LossBudgetSchedule:
    return LossBudgetSchedule(
        LossBudget(start=0, interval=1, max_rate=1, num_heads=num_heads, increment=0.25, budget=budget)
    )


class Refusal(FixedSchedule):
    """Asks for no heads and keeps none."""

    measures = True

    def judge(self, step: int, loss_before: float, loss_after: float) -> bool:
        return False


def calibration_data() -> CalibrationData[torch.Tensor]:
    return CalibrationData(batches=[inputs(seed) for seed in (3, 4)], positions=(), seed=0, source="")


def inputs(seed: int) -> torch.Tensor:
    return torch.randn(2, T, C, generator=torch.Generator().manual_seed(seed))


def train(model: nn.ModuleList, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Losses of a few steps."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model[0](inputs(step), None) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(made: Freezer[torch.Tensor], model: nn.ModuleList) -> dict[str, bytes | torch.Tensor | None]:
    state = made.state()
    plan = made.plan.to_bytes() if made.plan is not None else None
    return {"state": state, "plan": plan, **{name: p.detach().clone() for name, p in model.named_parameters()}}


def test_a_share_of_less_than_a_head_never_stops_a_loss_budget() -> None:
    _, _, made = freezer(schedule=loss_budget(budget=1e6), increment=0.01)
    for step in range(H):
        rate = made.rate_due(step)
        assert rate is not None
        made.freeze(step, rate, calibration_data())
        assert made.num_static_heads == step + 1
    assert made.rate_due(H) is None


def test_a_plan_that_was_rounded_otherwise_does_not_stop_a_loss_budget() -> None:
    _, _, made = freezer(rounding="round")
    made.freeze(0, 0.45, calibration_data())
    assert made.plan is not None
    assert made.num_static_heads == 2
    # rounded down the same rate means one head, and the next share two
    _, _, resumed = freezer(schedule=loss_budget(budget=1e6), rounding="floor")
    resumed.restore(made.plan)
    assert resumed.rate_due(1) == 0.75


def test_an_undone_freeze_leaves_patterns_in_training_as_they_were() -> None:
    def run(*, undo: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
        model, optimizer, made = freezer(schedule=loss_budget(budget=1e6), pattern_lr=0.1, max_fit_kl=9.0)
        made.freeze(0, 0.5, calibration_data())
        train(model, optimizer, 3)
        if undo:
            made._schedule = Refusal([(9, 1.0)])
            optimizer.zero_grad()
            assert not made.freeze(3, 0.75, calibration_data()).accepted
        losses = train(model, optimizer, 3)
        assert made._pattern_training is not None
        return losses, made._pattern_training.moments()

    (losses, moments), (expected, expected_moments) = run(undo=True), run(undo=False)
    assert losses == expected
    assert moments.keys() == expected_moments.keys()
    assert all(torch.equal(moments[name], expected_moments[name]) for name in moments)


def test_patterns_keep_their_moments_when_heads_join_them() -> None:
    model, optimizer, made = freezer(pattern_lr=0.1, max_fit_kl=9.0)
    made.freeze(0, 0.5, calibration_data())
    train(model, optimizer, 3)
    assert made._pattern_training is not None
    before = {name: value.clone() for name, value in made._pattern_training.moments().items()}
    optimizer.zero_grad()
    made.freeze(3, 0.75, calibration_data())
    after = made._pattern_training.moments()
    assert len(before) == 2 * 2 * 3
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    # a head that joins later begins its own count of steps
    train(model, optimizer, 1)
    steps = [value.item() for name, value in made._pattern_training.moments().items() if name.endswith(".step")]
    assert sorted(steps) == [1, 1, 4, 4, 4, 4]


@pytest.mark.parametrize("fails_at", ["loss", "judge"])
def test_a_freeze_that_raises_changes_nothing(fails_at: str) -> None:
    model, optimizer, made = freezer(schedule=loss_budget(budget=1e6), compensate=True, max_fit_kl=9.0)
    train(model, optimizer, 1)
    before = state_of(made, model)
    calls = []

    def losses(batch: torch.Tensor) -> torch.Tensor:
        calls.append(made.num_static_heads)
        if made.num_static_heads and len(calls) > 5:
            if fails_at == "loss":
                raise RuntimeError("out of memory")
            return torch.full((len(batch),), math.nan)
        return (model[0](batch, None) - 1).square().mean((1, 2))

    made._measurement._sequence_losses = losses
    with pytest.raises((RuntimeError, ValueError), match=r"out of memory|positive and finite"):
        made.freeze(1, 0.5, calibration_data())
    assert made.num_static_heads == 0
    after = state_of(made, model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name], name


def test_values_are_compensated_head_by_head(caplog: pytest.LogCaptureFixture) -> None:
    model, _, made = freezer(compensate=True, max_fit_kl=9.0)
    wv = model[0].qkv_linear.wv.weight
    old = wv.detach().clone()
    rows = {(0, head): NewWeights("v", torch.full((D, C), float(head))) for head in range(H)}
    helpful = {1, 3}

    def losses(batch: torch.Tensor) -> torch.Tensor:
        """Falls with the rows of the helpful heads, and rises with the others."""
        is_new = [not torch.equal(wv[h * D : (h + 1) * D], old[h * D : (h + 1) * D]) for h in range(H)]
        return torch.tensor([5.0 + sum((-1.0 if h in helpful else 1.0) * is_new[h] for h in range(H))])

    made._measurement._sequence_losses = losses
    changed: list[Overwritten] = []
    with caplog.at_level(logging.INFO):
        made._compensate(rows, inputs(0), changed)
    for h in range(H):
        block = slice(h * D, (h + 1) * D)
        assert torch.equal(wv[block], rows[0, h].block if h in helpful else old[block])
    assert "Compensated 2 of 4 heads: loss 5.00000 -> 3.00000 (L0H1, L0H3)" in caplog.text
    for overwritten in changed:
        overwritten.restore()
    assert torch.equal(wv, old)


def test_a_run_that_rests_keeps_the_schedule_and_the_moments() -> None:
    options = {"pattern_lr": 0.1, "max_fit_kl": 9.0}
    model, optimizer, made = freezer(schedule=loss_budget(budget=1e6), **options)
    made.freeze(0, 0.5, calibration_data())
    train(model, optimizer, 2)
    state = made.state()
    assert state is not None
    assert made.plan is not None
    _, _, resting = freezer(schedule=loss_budget(budget=1e6), enable=False, **options)
    resting.restore(made.plan)
    resting.load_state(state)
    assert resting.state() == state


def test_patterns_in_training_resume_to_the_bit() -> None:
    options = {"pattern_lr": 0.1, "max_fit_kl": 9.0}
    model, optimizer, made = freezer(**options)
    made.freeze(0, 0.5, calibration_data())
    train(model, optimizer, 3)
    optimizer.zero_grad()
    made.freeze(3, 0.75, calibration_data())
    train(model, optimizer, 2)
    state, plan = made.state(), made.plan
    assert state is not None
    assert plan is not None

    again, its_optimizer, resumed = freezer(**options)
    resumed.restore(plan)
    again.load_state_dict(model.state_dict())
    resumed.load_state(state)
    assert train(again, its_optimizer, 3) == train(model, optimizer, 3)
    assert resumed.state() == made.state()
    assert resumed.plan is not None
    assert made.plan is not None
    assert resumed.plan.digest == made.plan.digest
