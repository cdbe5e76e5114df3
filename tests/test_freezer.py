"""When a freeze is due, and what it must have seen by then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from saf_titan.config.own_sections import SafSection
from saf_titan.freezer import Freezer
from saf_titan.saf.schedule import FixedSchedule
from tests.layers.test_attention import C, T, attention


def freezer(**settings: object) -> tuple[nn.ModuleList, torch.optim.Optimizer, Freezer[torch.Tensor]]:
    model = nn.ModuleList([attention()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    section = SafSection(enable=True, rate=0.25, **settings)  # type: ignore[arg-type]
    made = Freezer[torch.Tensor](
        model,
        optimizer,
        settings=section,
        schedule=FixedSchedule([(4, 0.25)]),
        forward=model[0],
        sequence_losses=lambda batch: model[0](batch, None).sum((1, 2)),
        group=None,
    )
    return model, optimizer, made


def test_a_freeze_is_due_from_its_step_on() -> None:
    _, _, made = freezer()
    assert [made.rate_due(step) for step in (0, 3, 4, 9)] == [None, None, 0.25, 0.25]


def test_the_gradient_selector_must_have_seen_a_step() -> None:
    model, optimizer, made = freezer(selector="qk_gradient")
    assert made.rate_due(3) is None
    with pytest.raises(ValueError, match=r"checkpoint of step 4, where .* set saf.step to 24 or so"):
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
