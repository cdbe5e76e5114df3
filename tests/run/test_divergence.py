"""What is not finite is found and named, and the advice does not lead back to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from saf_titan.run.divergence import diverged, first_not_finite


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_finite_state() -> None:
    model, optimizer = trained()
    assert first_not_finite(model, optimizer) is None
    assert first_not_finite(model, torch.optim.AdamW(model.parameters())) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_and_a_moment_are_named(value: float) -> None:
    model, optimizer = trained()
    with torch.no_grad():
        model[1].weight[0, 1] = value
    assert first_not_finite(model, optimizer) == "weight 1.weight"
    model, optimizer = trained()
    optimizer.state[model[0].bias]["exp_avg"][2] = value
    assert first_not_finite(model, optimizer) == "exp_avg of 0.bias"


def test_the_advice_names_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    text = str(diverged("the loss", 12, tmp_path))
    assert text.startswith(
        "the run has diverged: the loss of step 12 is not finite. Nothing was saved; no checkpoint was"
    )
    for step, complete in ((5, True), (10, True), (12, False)):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        if complete:
            (folder / ".metadata").write_bytes(b"index")
    text = str(diverged("the loss", 12, tmp_path))
    assert f"the newest sound checkpoint is {tmp_path / 'step-10'}." in text
    assert "a lower optimizer.lr" in text
