"""Trained models against the theory, and what a result holds."""

import dataclasses

import pytest
import torch

from saf_titan.one_layer import theory
from saf_titan.one_layer.setting import PARAMETRIZATIONS, Parametrization, Task, constant
from saf_titan.one_layer.train import Training, train

TASK = Task()


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("ratio", [0.3, 1.0, 5.0])
def test_full_matrices_follow_the_two_scalars(parametrization: Parametrization, ratio: float) -> None:
    # steps small enough for the flow; a loss that collapsed circuits reach in few of them
    rate = 0.02 if parametrization[2] == "F" else 0.3
    training = Training(
        parametrization=parametrization,
        ramp=constant(ratio),
        rate=rate,
        until_loss=0.1,
        aligned=True,
        double=True,
        seeds=1,
    )
    result = train(training)
    assert result.reached_S.all()
    predicted = theory.predicted_mass(parametrization, TASK, ratio, at_loss=0.1)
    assert result.mass_S.item() == pytest.approx(predicted, abs=5e-3)
    final = theory.State(result.gap_S.item(), result.v_S.item())
    assert theory.attention_mass(final.gap, TASK) == pytest.approx(result.mass_S.item(), abs=1e-6)
    assert theory.loss(final, TASK) == pytest.approx(result.loss_S.item(), rel=1e-6)


def test_seeds_train_as_if_alone() -> None:
    # a high loss, so that seeds stop at different steps
    training = Training(optimizer="sgd", rate=1.0, until_loss=0.7, seeds=3, init_scale=0.5, max_steps=400, double=True)
    together = train(training, test_sequences=64)
    assert together.reached_S.all()
    assert len(set(together.steps_S.tolist())) > 1
    again = train(training, test_sequences=64)
    assert torch.equal(together.mass_SN, again.mass_SN)
    # each seed is the same model whatever the others are
    for seed in range(3):
        alone = train(dataclasses.replace(training, seeds=1, first_seed=seed), test_sequences=64)
        assert alone.steps_S.item() == together.steps_S[seed].item()
        torch.testing.assert_close(alone.mass_SN[0], together.mass_SN[seed])
    stricter = train(dataclasses.replace(training, until_loss=0.5), test_sequences=64)
    assert (stricter.steps_S >= together.steps_S).all()


@pytest.mark.parametrize("optimizer", ["gd", "sgd", "adamw"])
def test_every_optimizer_learns_the_task(optimizer: str) -> None:
    rate = 0.02 if optimizer == "adamw" else 1.0
    result = train(
        Training(optimizer=optimizer, parametrization="FAFO", rate=rate, until_loss=0.05, seeds=2, max_steps=3000),  # type: ignore[arg-type]
        test_sequences=100,
    )
    assert result.reached_S.all()
    assert (result.loss_S <= 0.05).all()
    assert (result.probability_SN > 0.5).all()
    assert result.mass_SN.shape == result.probability_SN.shape
    assert ((result.mass_SN >= 0) & (result.mass_SN <= 1 + 1e-6)).all()


def test_what_does_not_reach_the_loss_says_so() -> None:
    result = train(Training(max_steps=5, seeds=2))
    assert not result.reached_S.any()
    assert result.steps_S.tolist() == [5, 5]


def test_a_full_vocabulary_softmax_also_learns_what_is_never_a_label() -> None:
    result = train(Training(full_vocabulary=True, parametrization="FAFO", rate=0.5, until_loss=0.1, seeds=1))
    assert result.reached_S.all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rate": 0.0}, "rate = 0: must be positive"), ({"seeds": 0}, "seeds = 0: must be at least")],
)
def test_impossible_settings_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**changes)  # type: ignore[arg-type]
