"""Contribution weights of a whole model on a text: numbers for each head, and the keys of one query.

Legend: B sequences, T time, L layers, H heads with an output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from saf_titan.analysis.contribution import Level, contribution_weights
from saf_titan.analysis.contribution_summary import ContributionSummary, summarize_contributions
from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.scores import layer_values
from saf_titan.analysis.tables import number, text_table
from saf_titan.fields.json_values import without_nan
from saf_titan.heads.names import head_name

RECENT = 16
"""Number of latest keys, the query's own included, whose attention and weights the table sums."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class HeadContributions:
    """The summaries of one layer, at both levels."""

    layer: int
    heads: tuple[int, ...]
    by_head: ContributionSummary
    by_layer: ContributionSummary


@dataclass(frozen=True)
class ModelContributions:
    """What every head of a model contributes, by layer."""

    layers: list[HeadContributions]

    def lines(self, *, is_terminal: bool = False) -> list[str]:
        """Return a line for each head: its share of the layer, and where its attention and its contributions lie."""
        columns = (
            "head",
            "share of layer",
            "sum of |weights|",
            "attention on first",
            "weight of first",
            f"attention on last {RECENT}",
            f"weight of last {RECENT}",
        )
        rows = []
        for one in self.layers:
            T = one.by_head.weight_by_key_HT.shape[1]
            figures = (
                one.by_layer.share_BHT.double().mean((0, 2)),
                one.by_head.size_by_key_HT.sum(1) / T,
                one.by_head.sink_attention_H,
                one.by_head.sink_share_H,
                one.by_head.attention_by_lag_HT[:, :RECENT].sum(1) / T,
                one.by_head.weight_by_lag_HT[:, :RECENT].sum(1) / T,
            )
            for h, head in enumerate(one.heads):
                values = [number(figure_H[h].item(), sign=n in (0, 3, 5)) for n, figure_H in enumerate(figures)]
                rows.append([head_name(one.layer, head), *values])
        return text_table(columns, rows, is_terminal=is_terminal)

    def to_json(self) -> dict[str, Any]:
        """Return the same numbers, and those by key and by lag (means over queries, six digits), as values of JSON."""

        def plain(values: Tensor) -> list[float]:
            return [float(f"{value:.6g}") for value in values.tolist()]

        heads = []
        for one in self.layers:
            T = one.by_head.weight_by_key_HT.shape[1]
            for h, head in enumerate(one.heads):
                heads.append(
                    {
                        "head": head_name(one.layer, head),
                        "share_of_layer": one.by_layer.share_BHT[:, h].double().mean().item(),
                        "attention_on_first": without_nan(one.by_head.sink_attention_H[h].item()),
                        "weight_of_first": without_nan(one.by_head.sink_share_H[h].item()),
                        "weight_of_first_in_layer": without_nan(one.by_layer.sink_share_H[h].item()),
                    }
                    | {
                        name: plain(getattr(one.by_head, f"{name}_HT")[h] / T)
                        for name in ("attention_by_key", "weight_by_key", "attention_by_lag", "weight_by_lag")
                    }
                )
        return {"heads": heads}


@torch.no_grad()
def measure_contributions(
    decoder: AnalysedDecoder,
    tokens_BT: Tensor,
    *,
    layers: Sequence[int] = (),
    is_behind_norm: bool = False,
    progress: Progress | None = None,
) -> ModelContributions:
    """Summarise the contribution weights of every layer, in the memory of one forward and a block of rows.

    layers: numbers of the layers to summarise; all if empty.
    is_behind_norm: take the output behind the norm between heads and residual stream, where there is one.
    """
    chosen = decoder.chosen_layers(layers)
    found: list[HeadContributions] = []

    def look(layer: LayerAttention) -> None:
        if layer.layer not in chosen:
            return
        values = layer_values(layer, decoder.norm(layer.layer) if is_behind_norm else None)
        by_head, by_layer = (
            summarize_contributions(layer.rows, values, level=level, top=0, window=layer.window)
            for level in get_args(Level)
        )
        found.append(HeadContributions(layer.layer, layer.heads, by_head, by_layer))
        if progress:
            progress("layer", len(found), len(chosen))

    with watching(decoder.attentions, look):
        decoder.run(tokens_BT)
    return ModelContributions(found)


@dataclass(frozen=True)
class TokenShares:
    """Attention and contributions of one query: each (L, T) sums to 1 over keys in every layer."""

    query: int
    attention_LT: Tensor
    """Mean over heads."""
    contribution_LT: Tensor
    """Sum over heads."""


@torch.no_grad()
def token_shares(
    decoder: AnalysedDecoder,
    tokens_1T: Tensor,
    query: int,
    *,
    layers: Sequence[int] = (),
    is_behind_norm: bool = False,
) -> TokenShares:
    """Return the attention of one query to each key and the contribution of each key, by layer.

    layers: numbers of the layers to include; all if empty. A layer whose heads are all pruned is left out.
    """
    chosen = decoder.chosen_layers(layers)
    attention, contribution = [], []

    def look(layer: LayerAttention) -> None:
        if layer.layer not in chosen:
            return
        p_1H1J = layer.rows(query, query + 1)
        values = layer_values(layer, decoder.norm(layer.layer) if is_behind_norm else None)
        attention.append(p_1H1J.mean(1)[0, 0])
        contribution.append(contribution_weights(p_1H1J, values, level="layer", undefined=0.0).token_BRJ[0, 0])

    with watching(decoder.attentions, look):
        decoder.run(tokens_1T[:, : query + 1])
    return TokenShares(query, torch.stack(attention), torch.stack(contribution))


def query_lines(
    decoder: AnalysedDecoder, tokens_T: Tensor, shares: TokenShares, *, count: int = 12, is_terminal: bool = False
) -> list[str]:
    """Return the lines of a table: the keys of one query with the largest contributions, and their attention.

    Contributions and attention are means over the layers of `shares`; count: number of keys.
    """
    contribution_T, attention_T = shares.contribution_LT.mean(0), shares.attention_LT.mean(0)
    keys = contribution_T.argsort(descending=True)[:count].tolist()
    assert decoder.pieces is not None
    pieces = decoder.pieces(tokens_T[: shares.query + 1].tolist())
    place = {key: n + 1 for n, key in enumerate(attention_T.argsort(descending=True).tolist())}
    rows = [
        [
            repr(pieces[key]),
            str(key),
            number(contribution_T[key].item(), sign=True),
            number(attention_T[key].item()),
            str(place[key]),
        ]
        for key in keys
    ]
    number_of_layers = "1 layer" if len(shares.attention_LT) == 1 else f"{len(shares.attention_LT)} layers"
    title = f"keys of position {shares.query}, {pieces[shares.query]!r}: mean over {number_of_layers}"
    columns = ("token", "position", "contribution", "attention", "place by attention")
    return [title, *text_table(columns, rows, is_terminal=is_terminal)]
