"""Measure whether the tokens that are said to matter carry the prediction: sufficiency, comprehensiveness, AOPC.

Source: ERASER (DeYoung et al. 2020), with its signs. p is the probability of the class j that the model predicts on the
whole text, and stays that of j when tokens are removed:

- comprehensiveness = p(text) - p(text without the rationale): high is good, the rationale was needed;
- sufficiency = p(text) - p(rationale alone): low is good, the rationale is enough. A paper that says "higher
  sufficiency is better" has the opposite sign.

Both lie in [-1, 1]. AOPC is the mean of either over rationales made of the best-scored 1, 5, 10, 20 and 50 % of tokens.

Legend: B examples, T time, K outcomes, F fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saf_titan.analysis.removal import Predict

FRACTIONS = (0.01, 0.05, 0.10, 0.20, 0.50)
"""ERASER's shares of tokens."""


@dataclass(frozen=True)
class Faithfulness:
    """What removing tokens does to each example; means over examples are what papers print."""

    probability_B: Tensor
    """Probability of the predicted outcome, on the whole text."""
    predicted_B: Tensor
    """The predicted outcome, an index into the K outcomes."""
    comprehensiveness_B: Tensor
    """High is good."""
    sufficiency_B: Tensor
    """Low is good."""


def faithfulness(predict: Predict, rationale_BT: Tensor, candidates_BT: Tensor) -> Faithfulness:
    """Measure the prediction without the rationale, and with the rationale alone.

    Args:
        predict: see `saf_titan.analysis.removal`; with a single outcome (an answer), that one is the predicted one.
        rationale_BT: bool, tokens that are said to matter; those that are no candidates do not count.
        candidates_BT: bool, tokens that may be removed: the text, without what asks, answers or predicts.
    """
    return _faithfulness(predict, predict(torch.zeros_like(candidates_BT)), rationale_BT, candidates_BT)


def _faithfulness(predict: Predict, whole_BK: Tensor, rationale_BT: Tensor, candidates_BT: Tensor) -> Faithfulness:
    """Do the work of `faithfulness`, given the probabilities on the whole text."""
    rationale_BT = rationale_BT & candidates_BT
    predicted_B = whole_BK.argmax(1)

    def p_of_predicted(probability_BK: Tensor) -> Tensor:
        return probability_BK.gather(1, predicted_B[:, None])[:, 0]

    whole_B = p_of_predicted(whole_BK)
    return Faithfulness(
        probability_B=whole_B,
        predicted_B=predicted_B,
        comprehensiveness_B=whole_B - p_of_predicted(predict(rationale_BT)),
        sufficiency_B=whole_B - p_of_predicted(predict(candidates_BT & ~rationale_BT)),
    )


def best_tokens(score_BT: Tensor, candidates_BT: Tensor, fraction: float) -> Tensor:
    """Return the best-scored share of each example's candidates, rounded up and at least one; bool (B, T).

    Of equal scores the earlier token is better. Raises ValueError for a fraction outside (0, 1] and scores of
    candidates that are nan.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"the fraction of tokens must be in (0, 1], got {fraction}")
    if bool(score_BT[candidates_BT].isnan().any()):
        raise ValueError("the scores of candidates must not be nan")
    score_BT = score_BT.double().masked_fill(~candidates_BT, -math.inf)
    order_BT = score_BT.argsort(dim=1, descending=True, stable=True)
    # subtract a little, so that 10 % of 10 tokens are one token although 0.1 is not exact in binary
    count_B = (fraction * candidates_BT.sum(1).double() - 1e-9).ceil().clamp(min=1)
    is_best_BT = torch.arange(score_BT.shape[1], device=score_BT.device) < count_B[:, None]
    return torch.zeros_like(candidates_BT).scatter(1, order_BT, is_best_BT) & candidates_BT


@dataclass(frozen=True)
class Aopc:
    """Faithfulness of the best-scored tokens at several fractions, and its mean."""

    fractions: tuple[float, ...]
    comprehensiveness_FB: Tensor
    """High is good."""
    sufficiency_FB: Tensor
    """Low is good."""

    @property
    def comprehensiveness_B(self) -> Tensor:
        """AOPC of each example."""
        return self.comprehensiveness_FB.mean(0)

    @property
    def sufficiency_B(self) -> Tensor:
        """AOPC of each example."""
        return self.sufficiency_FB.mean(0)


def aopc(predict: Predict, score_BT: Tensor, candidates_BT: Tensor, *, fractions: Sequence[float] = FRACTIONS) -> Aopc:
    """Return the faithfulness of the tokens with the highest scores (attention, a gradient, ...), by fraction.

    predict and candidates_BT are those of `faithfulness`. Raises ValueError without a fraction, and as `best_tokens`.
    """
    if not fractions:
        raise ValueError("aopc needs at least one fraction of tokens")
    whole_BK = predict(torch.zeros_like(candidates_BT))
    each = [_faithfulness(predict, whole_BK, best_tokens(score_BT, candidates_BT, f), candidates_BT) for f in fractions]
    return Aopc(
        fractions=tuple(fractions),
        comprehensiveness_FB=torch.stack([one.comprehensiveness_B for one in each]),
        sufficiency_FB=torch.stack([one.sufficiency_B for one in each]),
    )
