"""Scores computed from what a head adds to the residual stream, not only from where it attends.

A head's contribution is a = o W_O, its slice of the attention's output. Replacing the head by its fitted pattern
changes the stream r by e = (o_fit - o) W_O, with o_fit the pattern applied to the head's values. Per head:

    output_rms       sqrt(mean a^2): an error in a small contribution changes little
    redundancy       1 - max over other heads g of the layer of cos(a, a_g): 0 where another head does the same,
                     2 for the only head of a layer
    block_influence  1 - mean over tokens of cos(r, r + e), in [0, 2]
    output_error     |e| / |r| over all tokens: the relative error of the stream (this project's own score)

All are lower for heads that are safer to replace, NaN for heads that are static already.

Some models have an RMS norm g * u / rms(u) between the attention's output u and the stream (Gemma, Olmo 2). The stream
then receives the output of the norm, so that e is norm(u + (o_fit - o) W_O) - norm(u), and the contribution is a scaled
as the norm scales u: g * a / rms(u).

Legend: B sequences, T time, H query heads, U heads with an output, K kv heads, D head dim, C model dim, L layers,
N tokens of a batch, X = U * D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saf_titan.ops import StaticPattern, prepare_pattern, static_mix
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.exchange import sum_over_ranks
from saf_titan.saf.calibrate.watch import run_watched
from saf_titan.saf.fit.fit import fit_heads

Batch = TypeVar("Batch")


class MeasurableAttention(Protocol):
    """An attention module that returns (B, T, C) and whose parts can be hooked.

    inner_attention: called with (q, k, v_BTKD, ...), returns o_BTUD for `output_heads`. Heads may share values (K < U),
        evenly grouped.
    wo: its weight (C, H * D) has a block of columns for every head, pruned ones included.
    """

    num_heads: int
    inner_attention: nn.Module
    wo: nn.Linear

    @property
    def live_heads(self) -> tuple[int, ...]:
        """Heads that attend by queries and keys, ascending."""

    @property
    def output_heads(self) -> tuple[int, ...]:
        """Heads that have an output, ascending: all but pruned ones."""

    def register_forward_hook(self, hook: Callable[..., None]) -> RemovableHandle: ...


def output_scores(
    blocks: Sequence[nn.Module],
    attentions: Sequence[MeasurableAttention],
    batches: Sequence[Batch],
    forward: Callable[[Batch], object],
    calibration: Calibration,
    *,
    norms: Sequence[nn.Module | None] | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Tensor]:
    """Return the four scores of every live head, each (L, H), for `Calibration.with_scores`.

    Args:
        blocks: the transformer blocks; the first argument of each is the residual stream r before its attention.
        attentions: their attention layers.
        batches, forward, group: as in `calibrate`, where the same batches may be used. Runs one forward per batch.
        calibration: statistics of the same model; this function fits patterns to all its live heads.
        norms: for each layer the RMS norm between attention and stream, None where there is none.

    The sums of all ranks are added, so every rank returns the same scores.
    """
    norms = norms or [None] * len(blocks)
    watchers = [
        _Watcher(block, attention, norm, calibration, layer)
        for layer, (block, attention, norm) in enumerate(zip(blocks, attentions, norms, strict=True))
    ]
    run_watched(watchers, batches, forward)
    gram_LHH = sum_over_ranks(torch.stack([watcher.gram_HH for watcher in watchers]), group)
    error_LH = sum_over_ranks(torch.stack([watcher.error_H for watcher in watchers]), group)
    turn_LH = sum_over_ranks(torch.stack([watcher.turn_H for watcher in watchers]), group)
    stream_L, tokens_L = sum_over_ranks(torch.stack([watcher.stream_and_tokens for watcher in watchers]), group).unbind(
        1
    )

    # a head that adds nothing has no direction: its cosines are 0
    norm_LH = gram_LHH.diagonal(dim1=1, dim2=2).sqrt()
    cosine_LHH = gram_LHH / (norm_LH[:, :, None] * norm_LH[:, None, :]).clamp(min=torch.finfo(torch.float64).tiny)
    # the maximum over other heads leaves out the head itself and pruned heads
    cosine_LHH.diagonal(dim1=1, dim2=2).fill_(-1)
    for layer, attention in enumerate(attentions):
        cosine_LHH[layer, :, [h for h in range(attention.num_heads) if h not in attention.output_heads]] = -1
    width = attentions[0].wo.out_features
    scores = {
        "output_rms": norm_LH / (tokens_L[:, None] * width).sqrt(),
        "redundancy": 1 - cosine_LHH.amax(2),
        "block_influence": turn_LH / tokens_L[:, None],
        "output_error": (error_LH / stream_L[:, None]).sqrt(),
    }
    return {name: score_LH.masked_fill(~calibration.live_LH, math.nan) for name, score_LH in scores.items()}


class _Watcher:
    """Sums over the tokens that pass through one layer."""

    def __init__(
        self,
        block: nn.Module,
        attention: MeasurableAttention,
        norm: nn.Module | None,
        calibration: Calibration,
        layer: int,
    ) -> None:
        self.block, self.attention, self.norm = block, attention, norm
        self.live = tuple(calibration.live_LH[layer].nonzero().flatten().tolist())
        if self.live:
            self.pattern = _fitted_pattern(calibration, layer, self.live)
        H = calibration.num_heads
        self.gram_HH = torch.zeros(H, H, dtype=torch.float64)
        """<a_h, a_g>."""
        self.error_H = torch.zeros(H, dtype=torch.float64)
        """|e_h|^2."""
        self.turn_H = torch.zeros(H, dtype=torch.float64)
        """1 - cos(r, r + e_h)."""
        self.stream_and_tokens = torch.zeros(2, dtype=torch.float64)
        """|r|^2 and the number of tokens."""
        self._before_BTC: Tensor | None = None
        self._values_and_outputs: tuple[Tensor, Tensor] | None = None

    def register(self) -> list[RemovableHandle]:
        if not self.live:
            return []
        return [
            self.block.register_forward_pre_hook(self._on_block),
            self.attention.inner_attention.register_forward_hook(self._on_inner_attention),
            # not on `wo`: a layer with pruned heads multiplies by a part of its weight and does not call the module
            self.attention.register_forward_hook(self._on_attention),
        ]

    def _on_block(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._before_BTC = args[0]

    def _on_inner_attention(self, module: nn.Module, args: tuple[Tensor, ...], o_BTUD: Tensor) -> None:
        self._values_and_outputs = args[2], o_BTUD

    def _on_attention(self, module: nn.Module, args: tuple[Tensor, ...], attended_BTC: Tensor) -> None:
        assert self._before_BTC is not None
        assert self._values_and_outputs is not None
        v_BTKD, o_BTUD = (x.float() for x in self._values_and_outputs)
        B, T, U, D = o_BTUD.shape
        heads = list(self.attention.output_heads)
        wo_CUD = self.attention.wo.weight.float().unflatten(1, (-1, D))[:, heads]
        attended_BTC = attended_BTC.float()
        added_BTC = self._added(attended_BTC)
        stream_BTC = self._before_BTC.float() + added_BTC
        self._before_BTC = self._values_and_outputs = None

        self.stream_and_tokens += torch.tensor([stream_BTC.square().sum(dtype=torch.float64).item(), B * T])
        o_NX, wo_CX = o_BTUD.reshape(B * T, U * D), wo_CUD.flatten(1)
        if self.norm is not None:
            # norm(u) = scale * gain * u, with scale = 1 / rms(u) for each token
            gain_C = self._added(torch.ones_like(attended_BTC[0, 0]))
            scale_BT = added_BTC.norm(dim=2) / (gain_C * attended_BTC).norm(dim=2).clamp(min=1e-30)
            o_NX, wo_CX = o_NX * scale_BT.reshape(-1, 1), wo_CX * gain_C[:, None]
        # <a_h, a_g> = sum over (d, e) of (o^T o)[hd, ge] (W^T W)[hd, ge]
        blocks_UDUD = ((o_NX.T @ o_NX) * (wo_CX.T @ wo_CX)).view(U, D, U, D)
        index = torch.tensor(heads)
        self.gram_HH[index[:, None], index] += blocks_UDUD.sum((1, 3), dtype=torch.float64).cpu()
        places = [heads.index(head) for head in self.live]
        live_v_BTUD = v_BTKD.repeat_interleave(U // v_BTKD.shape[2], dim=2)[:, :, places]
        difference_BTUD = static_mix(live_v_BTUD, self.pattern.to(v_BTKD.device)) - o_BTUD[:, :, places]
        for u, (head, place) in enumerate(zip(self.live, places, strict=True)):
            error_BTC = difference_BTUD[:, :, u] @ wo_CUD[:, place].T
            if self.norm is not None:
                error_BTC = self._added(attended_BTC + error_BTC) - added_BTC
            cosine_BT = torch.cosine_similarity(stream_BTC, stream_BTC + error_BTC, dim=2)
            self.error_H[head] += error_BTC.square().sum(dtype=torch.float64).cpu()
            self.turn_H[head] += (1 - cosine_BT).sum(dtype=torch.float64).cpu()

    def _added(self, attended_BTC: Tensor) -> Tensor:
        """Return what an output of the attention adds to the stream, float32."""
        if self.norm is None:
            return attended_BTC
        added_BTC: Tensor = self.norm(attended_BTC)
        return added_BTC.float()


def _fitted_pattern(calibration: Calibration, layer: int, live: tuple[int, ...]) -> StaticPattern:
    fit = fit_heads(calibration, [(layer, head) for head in live], tol=1e-4)
    return prepare_pattern(fit.alpha_HT.float(), fit.rho_HT.float())
