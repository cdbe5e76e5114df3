"""The batched model is eq. (1), and the aligned start lies on the line of the theory. Covers one_layer/setting.py."""

import pytest
import torch

from saf_titan.one_layer import theory
from saf_titan.one_layer.model import OneLayer, scalars
from saf_titan.one_layer.setting import PARAMETRIZATIONS, Parametrization, Ramp, Task

TASK = Task(classes=3, distinct=2, common=3)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("num_outputs", [None, TASK.vocab_size])
def test_forward_is_equation_one(parametrization: Parametrization, num_outputs: int | None) -> None:
    model = OneLayer(parametrization, TASK, seeds=2, num_outputs=num_outputs, dtype=torch.float64)
    model.init_random(0.7, first_seed=0)
    generator = torch.Generator().manual_seed(0)
    tokens_SBT = torch.randint(TASK.vocab_size, (2, 5, TASK.length), generator=generator)
    output = model(tokens_SBT)
    for seed in range(2):
        qk_VV, ov_MV = (matrix[seed] for matrix in model.circuits())
        for row in range(5):
            x_TV = torch.eye(TASK.vocab_size, dtype=torch.float64)[tokens_SBT[seed, row]]
            attention_T = (x_TV @ qk_VV @ x_TV[-1]).softmax(0)
            torch.testing.assert_close(output.attention_SBT[seed, row], attention_T)
            torch.testing.assert_close(output.logits_SBM[seed, row], ov_MV @ x_TV.T @ attention_T)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_an_aligned_start_is_the_state_of_the_theory(parametrization: Parametrization) -> None:
    model = OneLayer(parametrization, TASK, seeds=2, dtype=torch.float64)
    model.init_aligned(0.1)
    expected = theory.start(parametrization, TASK, singular_value=0.1)
    gap_S, v_S = scalars(model)
    torch.testing.assert_close(gap_S, torch.full_like(gap_S, expected.gap))
    torch.testing.assert_close(v_S, torch.full_like(v_S, expected.v))
    qk_SVV, ov_SMV = model.circuits()
    for matrix, letter, rank in (
        (qk_SVV[0], parametrization[0], 1),
        (ov_SMV[0], parametrization[2], 2),
    ):
        singular = torch.linalg.svdvals(matrix)
        assert singular[:rank].tolist() == pytest.approx([0.1 if letter == "F" else 0.0] * rank)
        assert singular[rank:].abs().max() < 1e-12


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 classes, 1 distinct type"):
        Task(classes=1)
    with pytest.raises(ValueError, match="num_outputs = 2 leaves no output for some of the 3 classes"):
        OneLayer("CACO", TASK, seeds=1, num_outputs=2)
    with pytest.raises(ValueError, match="must be positive"):
        Ramp(start=0.0)


def test_a_ramp() -> None:
    ramp = Ramp(start=1, end=20, steps=10)
    assert [ramp.at(step) for step in (0, 5, 10, 11)] == [1, 10.5, 20, 20]
