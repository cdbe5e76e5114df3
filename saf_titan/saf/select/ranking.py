"""The order in which heads are tried, from the scores of a calibration.

Every score is (L, H) with lower = more static, and NaN for a head that is static already.

Legend: L layers, H query heads.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from saf_titan.heads.names import Head, head_name
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.select.registry import SELECTORS
from saf_titan.saf.select.selector import Ranking, SelectionSettings


def ranking(calibration: Calibration, selector: str, settings: SelectionSettings) -> Ranking:
    """Rank the live heads by a selector.

    Raises ValueError if the calibration lacks the scores of the selector, or `settings` name layers or heads that do
    not exist.
    """
    rank = SELECTORS[selector].rank
    if rank is not None:
        return rank(calibration, settings)
    scores_LH = measured_scores(calibration, selector)
    return Ranking(selector, scores_LH, rank_heads(scores_LH, exclude_layers=settings.exclude_layers))


def measured_scores(calibration: Calibration, selector: str) -> Tensor:
    """Return the scores (L, H) that a calibration has under a selector's name, NaN for static heads.

    Raises ValueError if there are none, or if the score of a live head is not finite: the ranking would silently leave
    out that head.
    """
    score_LH = calibration.scores_of(selector)
    if broken := (calibration.live_LH & ~score_LH.isfinite()).nonzero().tolist():
        names = ", ".join(head_name(layer, head) for layer, head in broken)
        raise ValueError(f"the scores {selector!r} of live heads must be finite, and those of {names} are not")
    return score_LH.masked_fill(~calibration.live_LH, math.nan)


def random_scores(calibration: Calibration, seed: int) -> Tensor:
    """Draw scores (L, H) from `seed`; the order of two heads does not depend on which heads are static already."""
    generator = torch.Generator().manual_seed(seed)
    random_LH = torch.rand(calibration.live_LH.shape, generator=generator, dtype=torch.float64)
    return random_LH.masked_fill(~calibration.live_LH, math.nan)


def rank_heads(scores_LH: Tensor, *, exclude_layers: Collection[int] = ()) -> list[Head]:
    """Sort heads by ascending (score, layer, head); leave out excluded layers and heads without a score."""
    L, H = scores_LH.shape
    unknown = sorted(layer for layer in exclude_layers if not 0 <= layer < L)
    if unknown:
        raise ValueError(f"exclude_layers names layers {unknown}, the model has layers 0 to {L - 1}")
    table = scores_LH.tolist()
    heads = [(layer, head) for layer in range(L) for head in range(H)]
    candidates = [
        (layer, head) for layer, head in heads if layer not in exclude_layers and not math.isnan(table[layer][head])
    ]
    return sorted(candidates, key=lambda head: (table[head[0]][head[1]], head))


def live_heads(calibration: Calibration) -> list[Head]:
    """Return the heads that a calibration has statistics of, ascending."""
    return [(layer, head) for layer, head in calibration.live_LH.nonzero().tolist()]


def require_live(calibration: Calibration, heads: Collection[Head]) -> None:
    """Raise ValueError, which names the wrong heads, unless a calibration has statistics of all of `heads`."""
    live = set(live_heads(calibration))
    if wrong := [head_name(layer, head) for layer, head in heads if (layer, head) not in live]:
        raise ValueError(f"the list of heads names {', '.join(wrong)}, which are not live heads of this model")
