"""Sinks of a whole model on a text: by layer, by the strongest heads, and by the confidence of the prediction.

Legend: B sequences, T time, L layers, H heads with an output, N positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.analysis.interventions import measured_positions
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.scores import layer_values
from saf_titan.analysis.sinks import HeadSinks, LayerSink, Parabola, by_confidence, fit_parabola, sink_effects
from saf_titan.analysis.tables import number, text_table
from saf_titan.fields.json_values import without_nan
from saf_titan.heads.names import head_name

Progress = Callable[[str, int, int], None]

STRONGEST = 12
"""Heads that the second table shows."""
CONFIDENCE_POSITIONS = 64
"""Positions of each sequence whose predictions say how confident the model is."""
GROUPS = ("least confident third", "middle third", "most confident third")


@dataclass(frozen=True)
class HeadSink:
    """What the first position does in one head: means over the later queries that see it."""

    name: str
    layer: int
    mass: float
    weight: float
    alignment: float
    relative_length: float
    """|v~_0| divided by the mean length of what else the head mixes, |u|."""
    anti_aligned: float
    """Share of queries whose sink points against the rest."""
    inside: float
    """Share of queries whose output is shortest at an attention on the sink between 0 and 1."""
    correlation: float
    """Of attention and contribution weight over queries, in [-1, 1]; NaN where one of them is constant."""
    parabola: Parabola | None
    """|o| against the attention on the sink; None where the attention hardly varies."""

    @property
    def curvature(self) -> str:
        """How |o| bends against s: "convex" or "concave", or "-" if that is less than two standard errors."""
        if self.parabola is None or abs(self.parabola.quadratic) < 2 * self.parabola.quadratic_error:
            return "-"
        return "convex" if self.parabola.is_convex else "concave"


@dataclass(frozen=True)
class ModelSinks:
    """The sinks of a model: each head, and each layer by the confidence of the prediction."""

    eps: float
    heads: list[HeadSink]
    groups: dict[str, list[float]]
    """Figures of the layers that have a sink, by name: one value for each of `GROUPS`; empty if no layer has a sink."""

    @property
    def sinks(self) -> list[HeadSink]:
        """Heads whose mean attention on the first position is above eps."""
        return [head for head in self.heads if head.mass > self.eps]

    def lines(self, *, is_terminal: bool = False) -> list[str]:
        """Return the lines of three tables: by layer, of the strongest heads, and by confidence."""
        found = [
            f"{len(self.sinks)} of {len(self.heads)} heads are sinks: mean attention on the first key > {self.eps}"
        ]
        columns = ("", "heads", "sinks", *_FIGURES.values(), "convex", "concave")
        layers = sorted({head.layer for head in self.heads})
        members = {f"layer {layer}": [head for head in self.heads if head.layer == layer] for layer in layers}
        members |= {"all heads": self.heads, "sinks": self.sinks}
        rows = [self._row(name, heads) for name, heads in members.items() if heads]
        found += text_table(columns, rows, is_terminal=is_terminal)
        strongest = sorted(self.heads, key=lambda head: -head.mass)[:STRONGEST]
        columns = ("head", *_FIGURES.values(), "length of the output")
        rows = [
            [head.name, *(number(getattr(head, name), sign=name in _SIGNED) for name in _FIGURES), head.curvature]
            for head in strongest
        ]
        found += ["", *text_table(columns, rows, is_terminal=is_terminal)]
        if self.groups:
            rows = [[name, *(number(value) for value in values)] for name, values in self.groups.items()]
            title = "layers with a sink, by the probability of the likeliest next token"
            found += ["", title, *text_table(("", *GROUPS), rows, is_terminal=is_terminal)]
        return found

    def _row(self, name: str, heads: list[HeadSink]) -> list[str]:
        means = [
            number(_mean([getattr(head, figure) for head in heads]), sign=figure in _SIGNED) for figure in _FIGURES
        ]
        curvatures = [head.curvature for head in heads]
        counts = [str(curvatures.count(kind)) for kind in ("convex", "concave")]
        return [name, str(len(heads)), str(sum(head.mass > self.eps for head in heads)), *means, *counts]

    def to_json(self) -> dict[str, Any]:
        heads = [
            {name: getattr(head, name) for name in ("name", *_FIGURES)}
            | {"curvature": head.curvature}
            | ({} if head.parabola is None else {"parabola": vars(head.parabola)})
            for head in self.heads
        ]
        return without_nan({"eps": self.eps, "heads": heads, "by_confidence": self.groups})


_FIGURES = {
    "mass": "attention",
    "weight": "weight",
    "correlation": "correlation",
    "alignment": "cosine",
    "anti_aligned": "cosine < 0",
    "relative_length": "length ratio",
    "inside": "0 < s* < 1",
}
_SIGNED = ("weight", "correlation", "alignment")


@torch.no_grad()
def measure_sinks(
    decoder: AnalysedDecoder,
    tokens_BT: Tensor,
    *,
    eps: float = 0.3,
    layers: Sequence[int] = (),
    is_behind_norm: bool = False,
    progress: Progress | None = None,
) -> ModelSinks:
    """Measure what the first position does in every head, in O(T) memory for each head.

    eps: mean attention that makes a head a sink. layers: numbers of the layers to measure; all if empty.
    """
    chosen = decoder.chosen_layers(layers)
    heads: list[HeadSink] = []
    with_sink: list[LayerSink] = []
    done = 0

    def look(layer: LayerAttention) -> None:
        nonlocal done
        if layer.layer not in chosen:
            return
        done += 1
        values = layer_values(layer, decoder.norm(layer.layer) if is_behind_norm else None)
        of_heads, of_layer = sink_effects(layer.rows, values, window=layer.window)
        found = [
            _head(head_name(layer.layer, head), layer.layer, of_heads, h, layer.window)
            for h, head in enumerate(layer.heads)
        ]
        heads.extend(found)
        if any(head.mass > eps for head in found):
            with_sink.append(of_layer)
        if progress:
            progress("layer", done, len(chosen))

    with watching(decoder.attentions, look):
        decoder.run(tokens_BT)
    return ModelSinks(eps, heads, _groups(decoder, tokens_BT, with_sink) if with_sink else {})


def _head(name: str, layer: int, found: HeadSinks, h: int, window: int | None) -> HeadSink:
    # The first query sees nothing else, and the queries from `window` on do not see the first position.
    mass, weight, alignment, rest, output, lowest = (
        x_BHT[:, h, 1:window].flatten()
        for x_BHT in (
            found.mass_BHT,
            found.weight_BHT,
            found.alignment_BHT,
            found.rest_norm_BHT,
            found.output_norm_BHT,
            found.lowest.mass,
        )
    )
    known = ~(alignment.isnan() | weight.isnan())
    inside = ((lowest > 0) & (lowest < 1))[known]
    return HeadSink(
        name=name,
        layer=layer,
        mass=mass.mean().item(),
        weight=weight[known].mean().item(),
        alignment=alignment[known].mean().item(),
        relative_length=(found.sink_norm_BH[:, h].double().mean() / rest[known].mean()).item(),
        anti_aligned=(alignment[known] < 0).double().mean().item(),
        inside=inside.double().mean().item(),
        correlation=_correlation(mass[known], weight[known]),
        parabola=fit_parabola(mass, output) if len(mass) > 3 and mass.std() > 0.01 else None,
    )


def _correlation(x_N: Tensor, y_N: Tensor) -> float:
    if len(x_N) < 3:
        return math.nan
    x, y = x_N - x_N.mean(), y_N - y_N.mean()
    scale = (x.norm() * y.norm()).item()
    return (x @ y).item() / scale if scale > 0 else math.nan


def _groups(decoder: AnalysedDecoder, tokens_BT: Tensor, layers: list[LayerSink]) -> dict[str, list[float]]:
    """Return the figures of the layers with a sink, by name, for three groups of positions.

    The groups are made by the confidence of the prediction, the least confident third first.
    """
    rows_N = measured_positions(tokens_BT.shape[1], CONFIDENCE_POSITIONS)
    # one sequence at a time: the vocabulary may be large
    confidence_BN = torch.stack(
        [decoder.logits(row_T.unsqueeze(0), rows_N)[0].float().softmax(-1).amax(-1) for row_T in tokens_BT]
    ).cpu()

    def grouped(values: list[Tensor]) -> list[float]:
        # a query that does not see the first position in one layer, because of its window, may see it in another
        mean_BT = torch.stack(values).nanmean(0)
        return by_confidence(mean_BT[:, rows_N].flatten().cpu(), confidence_BN.flatten())

    return {
        "probability of the likeliest token": by_confidence(confidence_BN.flatten().double(), confidence_BN.flatten()),
        "weight of the first position": grouped([one.weight_BT for one in layers]),
        "cosine of its part and the rest": grouped([one.alignment_BT for one in layers]),
        "length of the output, |o|": grouped([one.output_norm_BT for one in layers]),
        "without the first position, |o_rest|": grouped([one.rest_norm_BT for one in layers]),
        "|o| / |o_rest|": grouped([one.output_norm_BT / one.rest_norm_BT for one in layers]),
    }


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
