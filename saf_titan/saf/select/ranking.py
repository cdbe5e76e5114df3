"""Which heads become static: scores, their ranking, and how many.

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


def scores(calibration: Calibration, selector: str, *, seed: int = 0) -> Tensor:
    """Scores (L, H) of a selector: "variance" (the published default), "kl", one of `extra_scores`, or "random".

    seed: of "random" alone; its order does not depend on which heads are static already.
    Raises ValueError for a selector this calibration has no scores for, and for scores of live heads that are not
    finite: such a head would never be considered.
    """
    if selector == "random":
        generator = torch.Generator().manual_seed(seed)
        random_LH = torch.rand(calibration.live_LH.shape, generator=generator, dtype=torch.float64)
        return random_LH.masked_fill(~calibration.live_LH, math.nan)
    score_LH = calibration.scores_of(selector)
    if broken := (calibration.live_LH & ~score_LH.isfinite()).nonzero().tolist():
        names = ", ".join(head_name(layer, head) for layer, head in broken)
        raise ValueError(f"the scores {selector!r} of live heads must be finite, and those of {names} are not")
    return score_LH.masked_fill(~calibration.live_LH, math.nan)


def rank_heads(scores_LH: Tensor, *, exclude_layers: Collection[int] = ()) -> list[Head]:
    """Heads by ascending (score, layer, head), without those of excluded layers and those that have no score."""
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
    """The heads that a calibration has statistics of, ascending."""
    return [(layer, head) for layer, head in calibration.live_LH.nonzero().tolist()]


def require_live(calibration: Calibration, heads: Collection[Head]) -> None:
    """ValueError, naming the others, unless a calibration has statistics of all of `heads`."""
    live = set(live_heads(calibration))
    if wrong := [head_name(layer, head) for layer, head in heads if (layer, head) not in live]:
        raise ValueError(f"the list of heads names {', '.join(wrong)}, which are not live heads of this model")
