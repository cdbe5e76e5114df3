"""Attention sinks: how much attention the first position draws, what it contributes, and what it does to the output.

A head's output is o = s v~_0 + (1 - s) u: s is the attention on the sink, u the mixture of all other keys by the rest
of the attention, made to sum to 1. With u held fixed, |o|^2 is a parabola in s, so |o| is convex, and lowest at

    s* = <u, u - v~_0> / |u - v~_0|^2,  clipped to [0, 1];

for a v~_0 that points against u, s* lies inside (0, 1): attention to the sink first makes the output small, then turns
it round. Over many queries u varies, and convexity is a question to the data: `fit_parabola`.

Sources: arXiv 2606.07604 (anti-alignment, convexity, drift); Gu et al. 2025 for the sink rate. How that paper defines
drift is not known to us; here it is the length of what the layer adds to the residual stream, see `LayerSink`.

Legend: B sequences, T time, R queries of a row block, J keys it sees, H heads, L layers, M coordinates of a head,
C model width, N points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from saf_titan.analysis.contribution import HeadValues
from saf_titan.analysis.contribution_summary import Rows

_BLOCK_ELEMENTS = 1 << 20


def sink_mass(p_BHRJ: Tensor, key: int = 0) -> Tensor:
    """Return the attention of every query on one key, (B, H, R), in [0, 1], as a view."""
    return p_BHRJ[..., key]


def mean_sink_mass(p_BHTT: Tensor, key: int = 0) -> Tensor:
    """Return the mean attention on one key, (H,), over sequences and over all queries from the key's own on.

    Without a window these are the queries that see the key.
    """
    return p_BHTT[:, :, key:, key].double().mean((0, 2))


def sink_rate(mass_LH: Tensor, eps: float = 0.3) -> float:
    """Return the share of heads whose mean attention on the sink is above eps, in [0, 1]; NaN heads are left out.

    mass_LH: `mean_sink_mass` of each layer, or `Calibration.sink_mass_LH`. eps is 0.3 for Gu et al.; others take 0.8.
    """
    known = mass_LH[~mass_LH.isnan()]
    return float((known > eps).double().mean())


@dataclass(frozen=True)
class LowestOutput:
    """Where |s v + (1 - s) u| is lowest for s in [0, 1]."""

    mass: Tensor
    """s*."""
    norm: Tensor
    """|o(s*)|."""
    slope: Tensor
    """Slope of |o| at s = 0: |v| cos(v, u) - |u|."""


def lowest_output(sink_square: Tensor, rest_square: Tensor, product: Tensor) -> LowestOutput:
    """Return the lowest output from |v|^2, |u|^2 and <v, u>; tensors of one shape. NaN where v and u are both zero."""
    distance = sink_square + rest_square - 2 * product
    mass = ((rest_square - product) / distance).clamp(0, 1)
    square = mass.square() * sink_square + 2 * mass * (1 - mass) * product + (1 - mass).square() * rest_square
    return LowestOutput(mass, square.clamp(min=0).sqrt(), product / rest_square.sqrt() - rest_square.sqrt())


@dataclass(frozen=True)
class HeadSinks:
    """What the first position does to the output of each head, by query.

    NaN, except for the attention, at query 0, which sees nothing else, and at queries that do not see the first
    position, because it is outside of their window.
    """

    mass_BHT: Tensor
    """s, in [0, 1]."""
    weight_BHT: Tensor
    """The contribution weight of the first position at the head level."""
    alignment_BHT: Tensor
    """cos(v~_0, u), in [-1, 1]."""
    sink_norm_BH: Tensor
    """|v~_0|."""
    rest_norm_BHT: Tensor
    """|u|."""
    output_norm_BHT: Tensor
    """|o|."""
    lowest: LowestOutput
    """Each (B, H, T)."""


@dataclass(frozen=True)
class LayerSink:
    """The same for the sum of the heads: o = o_sink + o_rest, the parts of the first position and of all other keys."""

    weight_BT: Tensor
    """<o_sink, o> / |o|^2: the contribution of the first position at the layer level."""
    alignment_BT: Tensor
    """cos(o_sink, o_rest), in [-1, 1]."""
    output_norm_BT: Tensor
    """|o|: how far the layer moves the residual stream."""
    rest_norm_BT: Tensor
    """|o_rest|: how far it would move it without the values of the first position."""


def sink_effects(
    rows: Rows, values: HeadValues, *, row_block: int | None = None, window: int | None = None
) -> tuple[HeadSinks, LayerSink]:
    """Measure the first position of one layer, with O(B H T) extra memory beside one block of rows.

    Args:
        rows: gives attention rows by block.
        values: of all keys.
        row_block: queries worked on at once.
        window: how many of the latest keys a query sees, its own included; None for all.
    """
    B, H, T, _ = values.v_BHTM.shape
    row_block = row_block or max(_BLOCK_ELEMENTS // (B * H * T), 1)
    sink_BHM = values.v_BHTM[:, :, 0]
    blocks = []
    for start in range(0, T, row_block):
        p_BHRJ = rows(start, min(start + row_block, T)).to(values.v_BHTM.dtype, copy=True)
        mass_BHR = sink_mass(p_BHRJ).clone()
        p_BHRJ[..., 0] = 0
        # The rest is summed by itself: the output less the part of the sink would lose all digits where s is near 1.
        rest_BHRM, other_BHR = values.outputs(p_BHRJ), p_BHRJ.sum(-1)
        head = _head_block(mass_BHR, other_BHR, sink_BHM, rest_BHRM)
        part_BRC = torch.einsum("bhr,bhm,hmc->brc", mass_BHR, sink_BHM, values.basis_HMC)
        blocks.append((*head, *_layer_block(part_BRC, torch.einsum("bhrm,hmc->brc", rest_BHRM, values.basis_HMC))))
    joined = [torch.cat(column, dim=-1) for column in zip(*blocks, strict=True)]
    for column in joined[1:]:
        column[..., 0] = math.nan
        if window is not None:
            column[..., window:] = math.nan
    mass, weight, alignment, rest, output, lowest, lowest_norm, slope = joined[:8]
    heads = HeadSinks(
        mass, weight, alignment, sink_BHM.norm(dim=-1), rest, output, LowestOutput(lowest, lowest_norm, slope)
    )
    return heads, LayerSink(*joined[8:])


def _head_block(s_BHR: Tensor, other_BHR: Tensor, v_BHM: Tensor, rest_BHRM: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of `HeadSinks` for one block of rows, each (B, H, R).

    All follow from s and the inner products of the value of the sink and the mixture of the rest.
    """
    v_BH1M = v_BHM.unsqueeze(2)
    u_BHRM = rest_BHRM / other_BHR.unsqueeze(3)
    vv, uu, vu = (x.double() for x in ((v_BH1M * v_BH1M).sum(-1), (u_BHRM * u_BHRM).sum(-1), (v_BH1M * u_BHRM).sum(-1)))
    vv = vv.expand_as(uu)
    s, t = s_BHR.double(), other_BHR.double()
    square = (s_BHR.unsqueeze(3) * v_BH1M + rest_BHRM).double().square().sum(-1)
    weight = s * (s * vv + t * vu) / square
    lowest = lowest_output(vv, uu, vu)
    return s, weight, vu / (vv * uu).sqrt(), uu.sqrt(), square.sqrt(), lowest.mass, lowest.norm, lowest.slope


def _layer_block(sink_BRC: Tensor, rest_BRC: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of `LayerSink` for one block of rows, each (B, R)."""
    sink, rest = sink_BRC.double(), rest_BRC.double()
    output = sink + rest
    weight = (sink * output).sum(-1) / output.square().sum(-1)
    alignment = (sink * rest).sum(-1) / (sink.norm(dim=-1) * rest.norm(dim=-1))
    return weight, alignment, output.norm(dim=-1), rest.norm(dim=-1)


@dataclass(frozen=True)
class Parabola:
    """y = constant + linear x + quadratic x^2, by least squares."""

    constant: float
    linear: float
    quadratic: float
    quadratic_error: float
    """Standard error of the quadratic term, for independent residuals of one size."""
    explained: float
    """R^2: the share of the variance of y that the parabola explains."""

    @property
    def is_convex(self) -> bool:
        return self.quadratic > 0


def fit_parabola(x_N: Tensor, y_N: Tensor) -> Parabola:
    """Fit the lengths y of outputs by a parabola in the attention x on the sink; pairs with NaN are left out.

    Raises ValueError for fewer than four pairs, or x with fewer than three values.
    """
    known = ~(x_N.isnan() | y_N.isnan())
    x, y = x_N[known].double(), y_N[known].double()
    if len(x) < 4 or len(x.unique()) < 3:
        raise ValueError(f"a parabola needs at least 4 points at 3 different places, got {len(x)}")
    design = torch.stack([torch.ones_like(x), x, x.square()], dim=1)
    # Attention on a sink often varies little, so the columns are nearly dependent, which this solver can handle.
    solution = torch.linalg.lstsq(design, y.unsqueeze(1), driver="gelsd").solution[:, 0]
    residual = y - design @ solution
    variance = residual.square().sum() / (len(x) - 3)
    error = (variance * torch.linalg.pinv(design.T @ design)[2, 2]).clamp(min=0).sqrt()
    total = (y - y.mean()).square().sum()
    explained = 1 - (residual.square().sum() / total).item() if total > 0 else math.nan
    constant, linear, quadratic = solution.tolist()
    return Parabola(constant, linear, quadratic, error.item(), explained)


def by_confidence(values_N: Tensor, confidence_N: Tensor, groups: int = 3) -> list[float]:
    """Return the mean of the values in equally large groups of tokens, the least confident group first.

    confidence_N: of the same tokens, for example the probability of the likeliest next token. Tokens whose value is NaN
    are left out.
    """
    known = ~values_N.isnan()
    values, confidence = values_N[known].double(), confidence_N[known]
    order = confidence.argsort(stable=True)
    return [values[part].mean().item() for part in order.chunk(groups)]
