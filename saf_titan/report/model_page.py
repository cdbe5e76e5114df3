"""The page of a model: what its heads attend to and contribute on a text, without a run around it.

Legend: N sequences of the text, T time, L layers, H query heads, P blocks of the pooled attention maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from saf_titan.analysis.contribution import HeadValues, Level, contribution_weights
from saf_titan.analysis.contribution_summary import summarize_contributions
from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.scores import layer_values
from saf_titan.data.excerpts import Excerpts
from saf_titan.heads.names import Head, head_name
from saf_titan.report import markup
from saf_titan.report.explorer import head_explorer
from saf_titan.report.heads import HeadMaps, Mark, Metric, metrics_of, pictures_of
from saf_titan.report.passage import Weights, passage
from saf_titan.report.write import write_whole
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.calibrate.capture import Progress

_PASSAGE_BYTES = 6 << 20
"""A passage holds the weights of every head; it becomes shorter where they would take more than this."""


def write_model_report(
    decoder: AnalysedDecoder,
    excerpts: Excerpts,
    out: str | Path,
    *,
    passage_tokens: int = 64,
    is_behind_norm: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Measure a model on a text, write the page, and return its path; see `model_sections`.

    Raises ValueError as `model_sections` does, and if the page cannot be written.
    """
    path = Path(out)
    body = [
        "<header>",
        markup.heading(decoder.name, 1),
        "</header>",
        *model_sections(
            decoder, excerpts, passage_tokens=passage_tokens, is_behind_norm=is_behind_norm, progress=progress
        ),
        markup.footer(),
    ]
    write_whole(path, markup.page(f"{decoder.name}: attention", body))
    return path


def model_sections(
    decoder: AnalysedDecoder,
    excerpts: Excerpts,
    *,
    passage_tokens: int = 64,
    is_behind_norm: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Measure a model on a text and return the sections of a page: the heads, a passage, and a table of all heads.

    Args:
        excerpts: at least two sequences that fit the model and its patterns.
        passage_tokens: the beginning of the first sequence is shown word by word, this many tokens of it, or fewer
            where the page would become too large.
        is_behind_norm: take contributions behind the norm between heads and residual stream, where there is one.
        progress: called with (stage, done, total).

    Attention statistics are of live heads; contributions are of all heads but pruned ones. Raises ValueError as
    `saf.calibrate` does.
    """
    tokens_NT, attentions = excerpts.tokens_NT, decoder.attentions
    N, T = tokens_NT.shape
    num_layers, num_heads = len(attentions), attentions[0].num_heads
    if any(len(attention.static_heads) < num_heads for attention in attentions):
        calibration = calibrate(attentions, [tokens_NT], decoder.run, source=excerpts.source, progress=progress)
    else:
        calibration = _all_static(num_layers, num_heads, T)
    length = _passage_length(num_layers, num_heads, min(passage_tokens, T))
    found = _Contributions(num_layers, num_heads, length, decoder, is_behind_norm)
    for n in range(N):
        with watching(attentions, found.add):
            decoder.run(tokens_NT[n : n + 1])
        found.passage_is_done = True
        if progress:
            progress("contributions", n + 1, N)
    share_LH, sink_LH, sink_attention_LH = found.means(N)
    maps = HeadMaps(
        metrics=(
            *_known(metrics_of(calibration)),
            Metric(
                name="attention on the first token",
                meaning="mean attention on the first position of the later queries that see it, static heads included",
                values_LH=sink_attention_LH,
                is_share=True,
            ),
            Metric(
                name="contribution of the first token",
                meaning="mean contribution weight of the first position to the outputs of the later queries that see "
                "it; negative: it points against them",
                values_LH=sink_LH,
            ),
            Metric(
                name="share of the layer",
                meaning="mean share of the head in the summed output of its layer; the shares of a layer sum to 1",
                values_LH=share_LH,
            ),
        ),
        marks=_marks(attentions),
        pictures=pictures_of(calibration, decoder.plan),
    )
    assert decoder.pieces is not None
    words = decoder.pieces(tokens_NT[0, : found.length].tolist())
    return list(_sections(decoder.name, maps, excerpts, words, found.weights))


class _Contributions:
    """The contribution weights of all layers: summed over windows, and for the passage one by one."""

    def __init__(
        self, num_layers: int, num_heads: int, length: int, decoder: AnalysedDecoder, is_behind_norm: bool
    ) -> None:
        self._decoder, self._is_behind_norm = decoder, is_behind_norm
        self.length = length
        self.passage_is_done = False
        self.weights: list[Weights] = []
        self._shape = (num_layers, num_heads)
        self._share_LH, self._sink_LH, self._sink_attention_LH = (
            torch.full(self._shape, math.nan, dtype=torch.float64) for _ in range(3)
        )

    def add(self, layer: LayerAttention) -> None:
        """Add one layer of the forward of one window; `watching` calls this."""
        norm = self._decoder.norm(layer.layer) if self._is_behind_norm else None
        values = layer_values(layer, norm)
        of_head, of_layer = (
            summarize_contributions(layer.rows, values, level=level, top=0, window=layer.window)
            for level in get_args(Level)
        )
        heads = list(layer.heads)
        for table_LH, found_H in (
            (self._share_LH, of_layer.share_BHT.double().mean((0, 2))),
            (self._sink_LH, of_head.sink_share_H),
            (self._sink_attention_LH, of_head.sink_attention_H),
        ):
            table_LH[layer.layer, heads] = table_LH[layer.layer, heads].nan_to_num() + found_H.cpu()
        if not self.passage_is_done:
            self._keep_passage(layer, values)

    def _keep_passage(self, layer: LayerAttention, values: HeadValues) -> None:
        p_BHTT = layer.rows(0, self.length)
        of_layer = contribution_weights(p_BHTT, values, level="layer")
        of_head = contribution_weights(p_BHTT, values).weight_BHRJ[0].cpu()
        self.weights.append(
            _weights(f"layer {layer.layer}, all heads", p_BHTT[0].mean(0).cpu(), of_layer.token_BRJ[0].cpu())
        )
        for place, head in enumerate(layer.heads):
            self.weights.append(_weights(head_name(layer.layer, head), p_BHTT[0, place].cpu(), of_head[place]))

    def means(self, num_windows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Share of the layer, contribution of the first position, attention on it, (L, H); NaN for pruned heads."""
        return (
            self._share_LH / num_windows,
            self._sink_LH / num_windows,
            self._sink_attention_LH / num_windows,
        )


def _weights(name: str, attention_TT: Tensor, contribution_TT: Tensor) -> Weights:
    return Weights(name=name, by_measure=(("attention", attention_TT), ("contribution", contribution_TT)))


def _passage_length(num_layers: int, num_heads: int, wanted: int) -> int:
    """Return how many tokens to show: `wanted`, or fewer if their weights would exceed `_PASSAGE_BYTES`.

    A pair of tokens takes two 16-bit numbers in each head and each layer.
    """
    pairs = _PASSAGE_BYTES * 3 / 4 / (4 * num_layers * (num_heads + 1))
    return max(1, min(wanted, int(math.sqrt(2 * pairs))))


def _all_static(num_layers: int, num_heads: int, T: int) -> Calibration:
    """Return statistics that are all NaN, for a model without live heads."""

    def unknown(*shape: int) -> Tensor:
        return torch.full((num_layers, num_heads, *shape), math.nan, dtype=torch.float64)

    P = min(T, 64)
    return Calibration(
        variance_LH=unknown(),
        kl_LH=unknown(),
        neg_entropy_LH=unknown(),
        column_mass_LHT=unknown(T),
        diagonal_mass_LHT=unknown(T),
        entropy_LH=unknown(),
        mean_map_LHPP=unknown(P, P),
        live_LH=torch.zeros(num_layers, num_heads, dtype=torch.bool),
        record=CalibrationRecord(0, T),
    )


def _known(metrics: Sequence[Metric]) -> Iterator[Metric]:
    """Yield the metrics that are known for some head, except the sink mass: the contributions come with their own."""
    for metric in metrics:
        if metric.name != "sink mass" and metric.values_LH.isfinite().any():
            yield metric


def _marks(attentions: Sequence[Any]) -> dict[Head, Mark]:
    return {
        (layer, head): "static before" for layer, attention in enumerate(attentions) for head in attention.static_heads
    }


def _sections(
    name: str, maps: HeadMaps, excerpts: Excerpts, words: Sequence[str], weights: Sequence[Weights]
) -> Iterator[str]:
    num_layers, num_heads = maps.shape
    N, T = excerpts.tokens_NT.shape
    yield markup.paragraph(f"Measured on {N} sequences of {T:,} tokens of {excerpts.source}.", "faint")
    yield markup.cards(
        [("layers", f"{num_layers}"), ("heads a layer", f"{num_heads}"), ("static heads", f"{len(maps.marks)}")]
    )
    yield markup.heading("Heads")
    yield markup.paragraph(
        "A head adds to its layer the values of the tokens, each multiplied by its attention. Attention says how much "
        "of a value is taken; the contribution weight says how much of the output comes from it: attention times the "
        "length of the value, along the direction of the output. The contributions to a head's output sum to 1, and a "
        "value that points against the output contributes less than nothing."
    )
    yield head_explorer(maps, f"heads of {name}")
    yield markup.heading("A passage, word by word")
    yield markup.paragraph(f"The first {len(words)} tokens of the first sequence.", "faint")
    yield passage(words, weights, f"passage of {excerpts.source}")
    yield markup.heading("All heads")
    yield markup.table(
        ("head", "static", *(metric.name for metric in maps.metrics)),
        (
            (
                head_name(layer, head),
                "static" if (layer, head) in maps.marks else "",
                *(_number(metric.values_LH[layer, head].item()) for metric in maps.metrics),
            )
            for layer in range(num_layers)
            for head in range(num_heads)
        ),
    )


def _number(value: float) -> str:
    """Return the number as text, empty if it is not known; the table sorts empty cells behind all others."""
    return f"{value:.4g}" if math.isfinite(value) else ""
