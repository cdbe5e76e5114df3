"""An attention layer with a cache, which replaces a layer of the model while text is generated.

Legend: B sequences, T time, C model width, H query heads, U live heads, S static heads, K kv heads, G query heads per
kv head, N keys of a query, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saf_titan.generate.cache import Store, scores, weighted_sum
from saf_titan.generate.layout import Choice, Layout, choose, make_layout
from saf_titan.generate.progress import Progress
from saf_titan.generate.recurrence import DecayingSums
from saf_titan.generate.rows import pattern_rows
from saf_titan.generate.sums import BlockSums
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.pattern import StaticPattern


class CachedAttention(nn.Module):
    """Computes the same as `attention`: first for whole prompts, then for one token of each sequence at a time."""

    def __init__(self, attention: SAFAttention, progress: Progress, *, states: bool = True) -> None:
        """states: let static heads decode from a state of fixed size if their certified error allows."""
        super().__init__()
        self.attention = attention
        self.choices: tuple[Choice, ...] = choose(attention, progress.capacity, states=states)
        self.layout = make_layout(attention, self.choices)
        self._progress = progress
        # gathered once: a layer in training gathers its live rows in every forward
        self._weights = attention.qkv_linear.live_weights()
        self._scaling = attention.scaling if attention.scaling is not None else attention.head_dim**-0.5
        self._rows = pattern_rows(attention.inner_attention) if self.layout.summed else None
        self._places = _Places(self.layout, attention)
        self._keys: Store | None = None
        self._values: Store | None = None
        self._static_values: Store | None = None
        self.sums: BlockSums | None = None
        self._states: DecayingSums | None = None

    def forward(self, x_BTC: Tensor, attention_masks: object, positions: Tensor | None = None) -> Tensor:
        """Return the output [B, T, C] for whole prompts, or for one token of each sequence (T = 1)."""
        assert attention_masks is None
        q_BTUD, k_BTKD, v_BTKD = self.attention.qkv_linear.project(x_BTC, self._weights)
        if v_BTKD is None:
            # every head is pruned
            return self.attention.without_heads(x_BTC)
        if q_BTUD is not None and k_BTKD is not None:
            q_BTUD, k_BTKD = self.attention.positioned(q_BTUD, k_BTKD, positions)
        if self._progress.is_prefill:
            self.start(k_BTKD, v_BTKD)
            return self.attention.output(self.attention.mix(q_BTUD, k_BTKD, v_BTKD))
        return self.attention.output(self._step(q_BTUD, k_BTKD, v_BTKD))

    @property
    def num_bytes(self) -> int:
        """Bytes of everything that is kept from one token to the next."""
        parts = (self._keys, self._values, self._static_values, self.sums, self._states)
        return sum(part.num_bytes for part in parts if part is not None)

    def start(self, k_BTKD: Tensor | None, v_BTKD: Tensor) -> None:
        """Fill the cache with the values of the prompts, and with the keys of those kv heads that live heads read."""
        layout, places, capacity = self.layout, self._places, self._progress.capacity
        self.use(
            None if k_BTKD is None else Store.of_prompts(k_BTKD, capacity),
            Store.of_prompts(places.of(v_BTKD, layout.key_heads), capacity) if layout.key_heads else None,
            Store.of_prompts(places.of(v_BTKD, layout.value_heads), capacity) if layout.value_heads else None,
        )
        if layout.states:
            pattern = self.attention.inner_attention.pattern()
            assert pattern is not None
            of_states = StaticPattern(*(factor[self._patterns(layout.states)] for factor in pattern))
            read = places.state_heads
            kv_heads = [read.index(head // layout.group) for head in layout.states]
            self._states = DecayingSums(of_states, kv_heads, places.of(v_BTKD, read), self._progress.lengths)

    def use(self, keys: Store | None, values: Store | None, static_values: Store | None) -> None:
        """Decode from these stores: keys and values of `Layout.key_heads`, and values of `Layout.value_heads`."""
        layout = self.layout
        self._keys, self._values, self._static_values = keys, values, static_values
        if self._rows is not None:
            by_kv_head: dict[int, Tensor] = {}
            for store, kv_heads in ((values, layout.key_heads), (static_values, layout.value_heads)):
                if store is not None:
                    by_kv_head |= dict(zip(kv_heads, store.x_BKTD.unbind(1), strict=True))
            read = [by_kv_head[head // layout.group] for head in layout.summed]
            self.sums = BlockSums(self._rows, self._patterns(layout.summed), read)

    def _patterns(self, heads: Sequence[int]) -> list[int]:
        """Return the indices of the patterns of some static heads among all patterns of the layer."""
        return [self.attention.static_heads.index(head) for head in heads]

    def _step(self, q_B1UD: Tensor | None, k_B1KD: Tensor | None, v_B1KD: Tensor) -> Tensor:
        """Return y [B, 1, heads with an output, D] for one token of each sequence."""
        positions, places = self._progress.positions, self._places
        parts_BHD = []
        if q_B1UD is not None and k_B1KD is not None:
            parts_BHD.append(self._attend(q_B1UD[:, 0], k_B1KD, places.of(v_B1KD, self.layout.key_heads)))
        if self._static_values is not None:
            static_B1KD = places.of(v_B1KD, self.layout.value_heads)
            self._static_values.append(static_B1KD, positions)
        if self.sums is not None:
            # if no query heads share values, the summed heads are often in the order of the stored values
            is_same = places.summed_heads == self.layout.value_heads
            summed_B1SD = static_B1KD if is_same else places.of(v_B1KD, places.summed_heads)
            parts_BHD.append(self.sums.step(summed_B1SD[:, 0], positions).to(v_B1KD.dtype))
        if self._states is not None:
            newest_BKD = places.of(v_B1KD, places.state_heads)[:, 0]
            parts_BHD.append(self._states.step(newest_BKD, positions).to(v_B1KD.dtype))
        y_BHD = parts_BHD[0] if len(parts_BHD) == 1 else torch.cat(parts_BHD, dim=1)
        if places.output_order is not None:
            y_BHD = y_BHD.index_select(1, places.output_order)
        return y_BHD[:, None]

    def _attend(self, q_BUD: Tensor, k_B1KD: Tensor, v_B1KD: Tensor) -> Tensor:
        """Store keys and values of the live heads and return their outputs, [B, U, D]."""
        assert self._keys is not None
        assert self._values is not None
        progress, places, num_kv_heads = self._progress, self._places, len(self.layout.key_heads)
        self._keys.append(k_B1KD, progress.positions)
        self._values.append(v_B1KD, progress.positions)
        N = max(progress.lengths)
        if places.live_slots is not None:
            # the other heads of a group get queries of zeros; this adds no reads, as keys and values are read once
            q_BHD = q_BUD.new_zeros(len(q_BUD), num_kv_heads * self.layout.group, q_BUD.shape[-1])
            q_BUD = q_BHD.index_copy_(1, places.live_slots, q_BUD)
        scores_BKGN = scores(q_BUD.unflatten(1, (num_kv_heads, -1)), self._keys.first(N)).float() * self._scaling
        if not progress.is_even:
            length_B = torch.tensor(progress.lengths, device=q_BUD.device)
            is_behind_BN = torch.arange(N, device=q_BUD.device) >= length_B[:, None]
            scores_BKGN.masked_fill_(is_behind_BN[:, None, None], -torch.inf)
        weights_BKGN = scores_BKGN.softmax(-1).to(q_BUD.dtype)
        y_BHD = weighted_sum(weights_BKGN, self._values.first(N)).flatten(1, 2)
        return y_BHD if places.live_slots is None else y_BHD.index_select(1, places.live_slots)


class _Places:
    """Indices of the heads of a layout in tensors that have only some of the heads."""

    def __init__(self, layout: Layout, attention: SAFAttention) -> None:
        device, group = attention.wo.weight.device, layout.group
        self.live_slots: Tensor | None = None
        """Indices of the live heads among all query heads of `layout.key_heads`; None if those are all live."""
        if len(layout.live) < len(layout.key_heads) * group:
            slots = [layout.key_heads.index(head // group) * group + head % group for head in layout.live]
            self.live_slots = torch.tensor(slots, device=device)
        # kv heads whose values are computed: all, or with pruned heads those of live heads
        self._computed = layout.key_heads if attention.is_pruned else tuple(range(attention.n_kv_heads))
        read_by_states = {head // group for head in layout.states}
        self.state_heads = tuple(kv_head for kv_head in self._computed if kv_head in read_by_states)
        self.summed_heads = tuple(head // group for head in layout.summed)
        """The kv head of each static head that is summed; a kv head may occur more than once."""
        self._device, self._indices = device, dict[tuple[int, ...], Tensor]()
        produced = [*layout.live, *layout.summed, *layout.states]
        self.output_order: Tensor | None = None
        if produced != sorted(produced):
            self.output_order = torch.tensor([produced.index(head) for head in sorted(produced)], device=device)

    def of(self, v_BTKD: Tensor, kv_heads: tuple[int, ...]) -> Tensor:
        """Return the values of some kv heads, from the values of all kv heads that are computed."""
        if kv_heads == self._computed:
            return v_BTKD
        if kv_heads not in self._indices:
            indices = [self._computed.index(kv_head) for kv_head in kv_heads]
            self._indices[kv_heads] = torch.tensor(indices, device=self._device)
        return v_BTKD.index_select(2, self._indices[kv_heads])
