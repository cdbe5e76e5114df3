"""The attention layer of a model with a cache: it takes the layer's place while text is generated.

Shapes: B sequences, T time, C model width, H query heads, U live heads, K kv heads, G query heads of a kv head, N keys
of a query, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saf_titan.generate.cache import Store, scores, weighted_sum
from saf_titan.generate.layout import Choice, Layout, choose, make_layout
from saf_titan.generate.progress import Progress
from saf_titan.generate.recurrence import DecayingSums
from saf_titan.generate.rows import pattern_rows, weights_of
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.pattern import StaticPattern


class CachedAttention(nn.Module):
    """Computes what `attention` would, one token at a time once the prompts have been taken up."""

    def __init__(self, attention: SAFAttention, progress: Progress, *, states: bool = True) -> None:
        """states: let static heads decode from a state of fixed size where their certificate allows."""
        super().__init__()
        self.attention = attention
        self.choices: tuple[Choice, ...] = choose(attention, progress.capacity, states=states)
        self._layout = make_layout(attention, self.choices)
        self._progress = progress
        # gathered once: a layer in training gathers its live rows in every forward
        self._weights = attention.qkv_linear.live_weights()
        self._scaling = attention.scaling if attention.scaling is not None else attention.head_dim**-0.5
        self._rows = pattern_rows(attention.inner_attention) if self._layout.summed else None
        self._keys: Store | None = None
        self._values: Store | None = None
        self._states: DecayingSums | None = None
        self._places = _Places(self._layout, attention)

    def forward(self, x_BTC: Tensor, attention_masks: object, positions: Tensor | None = None) -> Tensor:
        """x [B, T, C] -> [B, T, C]: whole prompts, or one token a sequence."""
        assert attention_masks is None
        q_BTUD, k_BTKD, v_BTKD = self.attention.qkv_linear.project(x_BTC, self._weights)
        if v_BTKD is None:
            # every head is pruned
            return torch.zeros_like(x_BTC)
        if q_BTUD is not None and k_BTKD is not None:
            q_BTUD, k_BTKD = self.attention.positioned(q_BTUD, k_BTKD, positions)
        if self._progress.is_prefill:
            self._take_up(k_BTKD, v_BTKD)
            return self.attention.output(self.attention.mix(q_BTUD, k_BTKD, v_BTKD))
        return self.attention.output(self._step(q_BTUD, k_BTKD, v_BTKD))

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that is kept from one token to the next."""
        return sum(part.num_bytes for part in (self._keys, self._values, self._states) if part is not None)

    def _take_up(self, k_BTKD: Tensor | None, v_BTKD: Tensor) -> None:
        layout, places, capacity = self._layout, self._places, self._progress.capacity
        if k_BTKD is not None:
            self._keys = Store(k_BTKD, capacity)
        if layout.value_heads:
            self._values = Store(places.cached_values(v_BTKD), capacity)
        if layout.states:
            pattern = self.attention.inner_attention.pattern()
            assert pattern is not None
            chosen = [self.attention.static_heads.index(head) for head in layout.states]
            of_states = StaticPattern(*(factor[chosen] for factor in pattern))
            kv_heads = [places.state_values.index(head // layout.group) for head in layout.states]
            lengths = self._progress.lengths
            self._states = DecayingSums(of_states, kv_heads, v_BTKD[:, :, places.state_values], lengths)

    def _step(self, q_B1UD: Tensor | None, k_B1KD: Tensor | None, v_B1KD: Tensor) -> Tensor:
        """y [B, 1, heads with an output, D] of one token a sequence."""
        positions, places = self._progress.positions, self._places
        if self._keys is not None and k_B1KD is not None:
            self._keys.append(k_B1KD, positions)
        parts_BHD = []
        if self._values is not None:
            self._values.append(places.cached_values(v_B1KD), positions)
            weights_BKGN = self._all_weights(q_B1UD)
            y_BKGD = weighted_sum(weights_BKGN, self._values.first(max(self._progress.lengths)))
            parts_BHD.append(y_BKGD.flatten(1, 2))
        if self._states is not None:
            parts_BHD.append(self._states.step(v_B1KD[:, :, places.state_values], positions).to(v_B1KD.dtype))
        y_BHD = parts_BHD[0] if len(parts_BHD) == 1 else torch.cat(parts_BHD, dim=1)
        if places.output_order is not None:
            y_BHD = y_BHD.index_select(1, places.output_order)
        return y_BHD[:, None]

    def _all_weights(self, q_B1UD: Tensor | None) -> Tensor:
        """Weights of the cached values for every query head that reads them, [B, K, G, N]; zero for pruned heads."""
        layout, places, progress = self._layout, self._places, self._progress
        G, N = layout.group, max(progress.lengths)
        probs_BUN = self._probabilities(q_B1UD[:, 0], N) if q_B1UD is not None else None
        if not layout.summed and probs_BUN is not None and len(layout.live) == len(layout.value_heads) * G:
            return probs_BUN.unflatten(1, (-1, G))
        assert self._values is not None
        B, dtype = len(progress.lengths), self._values.x_BKTD.dtype
        weights_BHN = places.live_slots.new_zeros(B, len(layout.value_heads) * G, N, dtype=dtype)
        if probs_BUN is not None:
            weights_BHN.index_copy_(1, places.live_slots, probs_BUN)
        if self._rows is not None:
            rows_BSN = weights_of(self._rows, progress.positions, N)[:, places.summed_rows].to(dtype)
            weights_BHN.index_copy_(1, places.summed_slots, rows_BSN.expand(B, -1, -1))
        return weights_BHN.unflatten(1, (-1, G))

    def _probabilities(self, q_BUD: Tensor, N: int) -> Tensor:
        """Attention of the live heads, [B, U, N]."""
        assert self._keys is not None
        layout, places = self._layout, self._places
        G = layout.group
        if len(layout.live) == len(layout.key_heads) * G:
            q_BKGD = q_BUD.unflatten(1, (-1, G))
            scores_BUN = scores(q_BKGD, self._keys.first(N)).flatten(1, 2)
        else:
            # static heads beside live ones of their group have a query of zeros, which costs no memory traffic
            q_BHD = q_BUD.new_zeros(len(q_BUD), len(layout.key_heads) * G, q_BUD.shape[-1])
            q_BHD.index_copy_(1, places.key_slots, q_BUD)
            scores_BHN = scores(q_BHD.unflatten(1, (-1, G)), self._keys.first(N)).flatten(1, 2)
            scores_BUN = scores_BHN.index_select(1, places.key_slots)
        scaled_BUN = scores_BUN.float() * self._scaling
        if not self._progress.is_even:
            length_B = torch.tensor(self._progress.lengths, device=q_BUD.device)
            is_behind_BN = torch.arange(N, device=q_BUD.device) >= length_B[:, None]
            scaled_BUN.masked_fill_(is_behind_BN[:, None], -torch.inf)
        return scaled_BUN.softmax(-1).to(q_BUD.dtype)


class _Places:
    """Where the heads of a layout lie in tensors of fewer heads."""

    def __init__(self, layout: Layout, attention: SAFAttention) -> None:
        device, G = attention.wo.weight.device, layout.group
        # kv heads whose values are computed: all, or with pruned heads those of live heads
        computed = layout.value_heads if attention.is_pruned else tuple(range(attention.n_kv_heads))

        def slots(heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> Tensor:
            return torch.tensor([kv_heads.index(h // G) * G + h % G for h in heads], dtype=torch.int64, device=device)

        self.key_slots = slots(layout.live, layout.key_heads)
        self.live_slots = slots(layout.live, layout.value_heads)
        self.summed_slots = slots(layout.summed, layout.value_heads)
        self.summed_rows = [attention.static_heads.index(head) for head in layout.summed]
        self._cached = None if layout.value_heads == computed else list(layout.value_heads)
        self.state_values = [k for k in computed if k in {head // G for head in layout.states}]
        produced = [k * G + g for k in layout.value_heads for g in range(G)] + list(layout.states)
        wanted = list(attention.output_heads)
        self.output_order: Tensor | None = None
        if produced != wanted:
            self.output_order = torch.tensor([produced.index(head) for head in wanted], device=device)

    def cached_values(self, v_BTKD: Tensor) -> Tensor:
        """The values that are cached, of those that are computed."""
        return v_BTKD if self._cached is None else v_BTKD[:, :, self._cached]
