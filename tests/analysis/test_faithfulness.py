"""Sufficiency, comprehensiveness and AOPC against a model whose answer is known, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.faithfulness import FRACTIONS, aopc, best_tokens, faithfulness

EVIDENCE = torch.tensor([[0.0, 3.0, -1.0, 0.5], [0.0, -2.0, 0.0, 0.0]], dtype=torch.float64)
CANDIDATES = torch.tensor([[False, True, True, True]] * 2)


def predict(removed_BT: Tensor) -> Tensor:
    """A logistic model: class 1 has the sum of the evidence of all tokens that are seen."""
    logit_B = EVIDENCE.masked_fill(removed_BT, 0.0).sum(1)
    return torch.stack([torch.zeros_like(logit_B), logit_B], 1).softmax(1)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_signs_are_those_of_eraser() -> None:
    rationale = torch.tensor([[True, True, False, False]] * 2)
    result = faithfulness(predict, rationale, CANDIDATES)
    # the second example predicts class 0, and keeps to it
    assert result.predicted_B.tolist() == [1, 0]
    assert result.probability_B.tolist() == pytest.approx([sigmoid(2.5), sigmoid(2.0)])
    assert result.comprehensiveness_B.tolist() == pytest.approx([sigmoid(2.5) - sigmoid(-0.5), sigmoid(2.0) - 0.5])
    assert result.sufficiency_B.tolist() == pytest.approx([sigmoid(2.5) - sigmoid(3.0), 0.0])


def test_a_rationale_is_made_of_candidates() -> None:
    everything = torch.ones_like(CANDIDATES)
    result = faithfulness(predict, everything, CANDIDATES)
    assert result.sufficiency_B.tolist() == [0, 0]
    nothing = faithfulness(predict, ~everything, CANDIDATES)
    assert nothing.comprehensiveness_B.tolist() == [0, 0]


def test_best_tokens() -> None:
    score = torch.tensor([[9.0, 0.1, 0.3, 0.2], [9.0, 1.0, 1.0, 1.0]])
    assert best_tokens(score, CANDIDATES, 0.01).long().tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert best_tokens(score, CANDIDATES, 0.5).long().tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]]
    assert torch.equal(best_tokens(score, CANDIDATES, 1.0), CANDIDATES)
    ten = torch.ones(1, 10, dtype=torch.bool)
    assert [int(best_tokens(torch.rand(1, 10), ten, f).sum()) for f in (0.1, 0.2, 0.3, 0.31)] == [1, 2, 3, 4]
    assert not best_tokens(score, torch.zeros_like(CANDIDATES), 0.5).any()


def test_aopc_is_the_mean_over_fractions() -> None:
    score = EVIDENCE.abs()
    result = aopc(predict, score, CANDIDATES, fractions=(0.3, 0.6))
    each = [faithfulness(predict, best_tokens(score, CANDIDATES, f), CANDIDATES) for f in (0.3, 0.6)]
    assert result.comprehensiveness_B.tolist() == pytest.approx(
        ((each[0].comprehensiveness_B + each[1].comprehensiveness_B) / 2).tolist()
    )
    assert result.sufficiency_FB[1].tolist() == pytest.approx(each[1].sufficiency_B.tolist())
    assert aopc(predict, score, CANDIDATES).fractions == FRACTIONS == (0.01, 0.05, 0.10, 0.20, 0.50)
    # evidence itself is a better order than its reverse
    worse = aopc(predict, -score, CANDIDATES)
    assert result.comprehensiveness_B[0] > worse.comprehensiveness_B[0]


def test_what_is_refused() -> None:
    score = torch.rand(2, 4)
    with pytest.raises(ValueError, match=r"must be in \(0, 1\], got 0"):
        best_tokens(score, CANDIDATES, 0)
    with pytest.raises(ValueError, match="must not be nan"):
        best_tokens(score * torch.nan, CANDIDATES, 0.5)
    with pytest.raises(ValueError, match="at least one fraction"):
        aopc(predict, score, CANDIDATES, fractions=())
