"""Remove tokens from what a model sees, in one of three ways, and read what it then predicts.

- "value": a removed token's value is zero in every layer. Attention to it stays, so its share of a sum is lost.
- "edge": the score of a removed token is -inf in every layer, so attention goes to the others instead.
- "token": a removed token is taken out of the sequence, and later tokens move up by one position, as in ERASER.

"value" and "edge" change attention patterns, also those of static heads. They leave the residual stream of a removed
token as it is, so the model still predicts at its position. "token" needs only the forward of the model.

Legend: B sequences, T time, H heads, V vocabulary, K labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from saf_titan.analysis.patterns import using_patterns
from saf_titan.ops.attention_stats import hidden_keys

Way = Literal["value", "edge", "token"]
EdgeWay = Literal["value", "edge", "mean"]
"""How single edges from queries to keys are removed; see `edit_edges`."""
Predict = Callable[[Tensor], Tensor]
"""Maps which tokens are removed, bool (B, T), to the probabilities of K outcomes, (B, K)."""


def edit_patterns(p_BHTT: Tensor, removed_BT: Tensor, way: Way) -> Tensor:
    """Return attention patterns without the removed keys; see `edit_edges`.

    Raises ValueError for the way "token", which is no change of a pattern.
    """
    if way == "token":
        raise ValueError(f'way = {way!r} does not change patterns; "value" and "edge" do')
    return edit_edges(p_BHTT, removed_BT[:, None, None, :], way)


def edit_edges(p_BHTT: Tensor, removed_BXTT: Tensor, way: EdgeWay, *, visible_TT: Tensor | None = None) -> Tensor:
    """Return attention patterns without the removed edges from queries to keys.

    Args:
        removed_BXTT: bool; dimensions of size 1 stand for all heads, or all queries.
        way: "value" leaves a gap in each row, as if the values were zero there; "edge" closes the gap, as if the scores
            were -inf; "mean" fills it with the mean of the values that the query sees.
        visible_TT: true where a query sees a key; by default, where the key is not later.

    A row that loses all its edges is zero by the ways "value" and "edge". Raises ValueError for another way.
    """
    if way not in get_args(EdgeWay):
        raise ValueError(f"way = {way!r} is not one of {', '.join(get_args(EdgeWay))}")
    kept = p_BHTT.masked_fill(removed_BXTT, 0.0)
    if way == "value":
        return kept
    if way == "mean":
        if visible_TT is None:
            visible_TT = ~hidden_keys(0, p_BHTT.shape[-1], None, p_BHTT.device)
        gap_BHT1 = p_BHTT.masked_fill(~removed_BXTT, 0.0).sum(-1, keepdim=True)
        return kept + gap_BHT1 * (visible_TT / visible_TT.sum(-1, keepdim=True)).to(kept.dtype)
    mass = kept.sum(-1, keepdim=True)
    return torch.where(mass > 0, kept / mass, 0.0)


def removing(attentions: Sequence[Any], removed_BT: Tensor, way: Way) -> AbstractContextManager[None]:
    """Inside the context, forwards of sequences (B, T) run without the removed tokens, by way "value" or "edge"."""
    return using_patterns(attentions, lambda layer, p_BHTT: edit_patterns(p_BHTT, removed_BT, way))


def without_tokens(removed_BT: Tensor) -> Tensor:
    """Return the order of positions that moves the removed ones to the end and keeps the others in order, (B, T).

    `tokens_BT.gather(1, order)` is the shortened sequence, with the removed tokens as padding at its end, which no
    other token sees under a causal mask.
    """
    return removed_BT.long().argsort(dim=1, stable=True)


def label_predictor(
    forward: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    rows_B: Tensor,
    *,
    labels: Sequence[int] | None = None,
    way: Way = "token",
    attentions: Sequence[Any] | None = None,
    batch_size: int = 64,
) -> Predict:
    """Return a function from removed tokens to the probabilities of the next token after position `rows_B`.

    Args:
        forward: token ids (B, T) to logits (B, T, V).
        rows_B: the position that predicts; it is never removed.
        labels: ids of the K tokens that stand for classes, among which the probability is shared; None: all V.
        attentions: the model's attention layers, for the ways "value" and "edge".
    """

    def read(logits_BTV: Tensor, order_BT: Tensor, chunk: slice) -> Tensor:
        at_B = (order_BT == rows_B[chunk, None]).long().argmax(1)
        logits_BV = logits_BTV[torch.arange(len(at_B), device=at_B.device), at_B]
        if labels is not None:
            logits_BV = logits_BV[:, list(labels)]
        return logits_BV.double().softmax(-1)

    needed_BT = torch.zeros_like(tokens_BT, dtype=torch.bool).scatter(1, rows_B[:, None], True)
    return _predictor(forward, tokens_BT, needed_BT, read, way, attentions, batch_size)


def answer_predictor(
    forward: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    answer_BT: Tensor,
    *,
    way: Way = "token",
    attentions: Sequence[Any] | None = None,
    batch_size: int = 64,
) -> Predict:
    """Return a function from removed tokens to the probability of the answer's tokens, (B, 1).

    Args:
        answer_BT: bool, true for the tokens of the answer, one block that does not begin at position 0. They and the
            token before them are never removed.

    The probability is the product over the answer's tokens, each given all before it.
    """
    if bool(answer_BT[:, 0].any()) or not bool(answer_BT.any(1).all()):
        raise ValueError("every sequence needs an answer that does not begin at position 0")

    def read(logits_BTV: Tensor, order_BT: Tensor, chunk: slice) -> Tensor:
        targets_BT, is_answer_BT = (x_BT[chunk].gather(1, order_BT)[:, 1:] for x_BT in (tokens_BT, answer_BT))
        log_p_BT = logits_BTV[:, :-1].double().log_softmax(-1).gather(2, targets_BT[..., None])[..., 0]
        return torch.where(is_answer_BT, log_p_BT, 0.0).sum(1, keepdim=True).exp()

    needed_BT = answer_BT.clone()
    needed_BT[:, :-1] |= answer_BT[:, 1:]
    return _predictor(forward, tokens_BT, needed_BT, read, way, attentions, batch_size)


def _predictor(
    forward: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    needed_BT: Tensor,
    read: Callable[[Tensor, Tensor, slice], Tensor],
    way: Way,
    attentions: Sequence[Any] | None,
    batch_size: int,
) -> Predict:
    if way not in get_args(Way):
        raise ValueError(f"way = {way!r} is not one of {', '.join(get_args(Way))}")
    if way != "token" and attentions is None:
        raise ValueError(f"way = {way!r} changes attention and needs the model's attention layers")

    def predict(removed_BT: Tensor) -> Tensor:
        if removed_BT.shape != tokens_BT.shape or removed_BT.dtype != torch.bool:
            raise ValueError(
                f"removed tokens must be bool {tuple(tokens_BT.shape)}, got {removed_BT.dtype} "
                f"{tuple(removed_BT.shape)}"
            )
        if bool((removed_BT & needed_BT).any()):
            raise ValueError("the tokens that predict and those of the answer cannot be removed")
        parts = []
        for start in range(0, len(tokens_BT), batch_size):
            chunk = slice(start, start + batch_size)
            tokens, removed = tokens_BT[chunk], removed_BT[chunk]
            none = torch.zeros_like(removed)
            order = without_tokens(removed if way == "token" else none)
            hidden = nullcontext() if way == "token" else removing(attentions or (), removed, way)
            with torch.no_grad(), hidden:
                logits = forward(tokens.gather(1, order))
            parts.append(read(logits, order, chunk))
        return torch.cat(parts)

    return predict
