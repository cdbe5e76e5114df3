"""Scores of keys: how much each key matters to each query of one layer, by several measures.

With the grain "token" a key has one score for all heads of the layer, with "head" one for each head. The measure
`random` is the control for both.

Legend: B sequences, T time (queries and keys), H heads with an output, X = H by head and 1 by token, C model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from saf_titan.analysis.baselines import alti, head_norms, layer_norms
from saf_titan.analysis.contribution import Contributions, HeadValues, Level, contribution_weights, head_values
from saf_titan.analysis.layer import LayerAttention

Grain = Literal["token", "head"]


def norm_gain(norm: Any, C: int) -> Tensor:
    """Return the gain of an RMS norm, (C,), up to a common factor, on which shares and angles do not depend."""
    weight: Tensor = next(norm.parameters())
    gain_C: Tensor = norm(torch.ones(1, C, dtype=weight.dtype, device=weight.device))[0].detach()
    return gain_C


def layer_values(layer: LayerAttention, norm: Any = None) -> HeadValues:
    """Return the vectors that the heads of a layer add up.

    norm: the norm between the heads and the residual stream; if given, the vectors are those behind it, linearised.
    """
    wo_HDC = layer.wo_HDC
    return head_values(layer.v_BTKD, wo_HDC, gain_C=None if norm is None else norm_gain(norm, wo_HDC.shape[2]))


@dataclass(frozen=True)
class ScoredLayer:
    """One layer of a forward with the inputs of its scores; each input is computed when it is first used."""

    layer: LayerAttention
    norm: Any = None
    """The norm between the heads and the residual stream, if there is one."""
    x_BTC: Tensor | None = None
    """The residual stream before the layer; only ALTI needs it."""
    is_behind_norm: bool = False
    """Whether contribution weights and norms are computed behind `norm`, linearised."""

    @cached_property
    def p_BHTT(self) -> Tensor:
        return self.layer.rows()

    @cached_property
    def values(self) -> HeadValues:
        return layer_values(self.layer, self.norm if self.is_behind_norm else None)

    def contributions(self, level: Level) -> Contributions:
        return contribution_weights(self.p_BHTT, self.values, level=level, undefined=0.0)

    def alti(self) -> Tensor:
        """Return ALTI of the layer, (B, T, T); it includes the norm behind the heads if there is one."""
        assert self.x_BTC is not None
        if self.norm is None:
            return alti(self.p_BHTT, layer_values(self.layer), self.x_BTC)
        plain = layer_values(self.layer)
        sum_BTC = (plain.outputs(self.p_BHTT) @ plain.basis_HMC).sum(1)
        gain_C = norm_gain(self.norm, sum_BTC.shape[2])
        # the root mean square that the norm divides each row by, up to the common factor of `norm_gain`
        divisor_BT = (gain_C * sum_BTC).norm(dim=-1) / self.norm(sum_BTC).norm(dim=-1)
        return alti(self.p_BHTT, layer_values(self.layer, self.norm), self.x_BTC, divisor_BR=divisor_BT)


Score = Callable[[ScoredLayer], Tensor]
"""Scores (B, X, T, T), higher for keys that matter more."""

RANDOM = "random"

TOKEN_SCORES: Mapping[str, Score] = {
    "contribution": lambda one: one.contributions("layer").token_BRJ.unsqueeze(1),
    "|contribution|": lambda one: one.contributions("layer").token_BRJ.abs().unsqueeze(1),
    "attention": lambda one: one.p_BHTT.mean(1, keepdim=True),
    "norm": lambda one: layer_norms(one.p_BHTT, one.values).unsqueeze(1),
    "alti": lambda one: one.alti().unsqueeze(1),
}
HEAD_SCORES: Mapping[str, Score] = {
    "contribution": lambda one: one.contributions("head").weight_BHRJ,
    "|contribution|": lambda one: one.contributions("head").weight_BHRJ.abs(),
    "contribution to layer": lambda one: one.contributions("layer").weight_BHRJ,
    "|contribution to layer|": lambda one: one.contributions("layer").weight_BHRJ.abs(),
    "attention": lambda one: one.p_BHTT,
    "norm": lambda one: head_norms(one.p_BHTT, one.values),
}
SCORES: Mapping[Grain, Mapping[str, Score]] = {"token": TOKEN_SCORES, "head": HEAD_SCORES}
NEEDS_RESIDUAL = frozenset({"alti"})
"""Scores that need the residual stream before the layer."""


def random_scores(layer: LayerAttention, grain: Grain, generators: list[torch.Generator]) -> Tensor:
    """Return random scores, as a control.

    Each sequence has its own generator, so its scores do not depend on the other sequences of the batch.
    """
    T, X = layer.seq_len, len(layer.heads) if grain == "head" else 1
    drawn = [torch.rand(X, T, T, generator=generator) for generator in generators]
    return torch.stack(drawn).to(layer.v_BTKD.device)
