"""What each head of a layer keeps while text is generated, and why.

- A live head needs the keys and the values of its kv head.
- A static head needs values alone. Its output is the sum of the cached values, weighted by a row of its pattern.
- A static head whose far weights are sums of exponentials needs no cache of values: the newest values and a state of
  fixed size are enough. This saves memory only if no other head of its kv head reads cached values.
- A pruned head needs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from saf_titan.generate.recurrence import certified_error
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.exponentials import BAND, NUM_EXPONENTIALS

STATE_ERROR_LIMIT = 1e-5
"""Largest certified error, as a share of the largest value, at which a head decodes from a state of fixed size."""
_FP64_BYTES = 8


class Choice(NamedTuple):
    """How one static head decodes, and the reason as text."""

    head: int
    way: str
    """ "values": a sum over cached values; "state": a fixed-size state; "none": pruned."""
    reason: str


class Layout(NamedTuple):
    """The heads of one layer, grouped by what they keep; each group is ascending."""

    live: tuple[int, ...]
    summed: tuple[int, ...]
    """Static heads that sum cached values."""
    states: tuple[int, ...]
    """Static heads with a state of fixed size."""
    key_heads: tuple[int, ...]
    """Kv heads that a live head reads: their keys and values are cached."""
    value_heads: tuple[int, ...]
    """Kv heads whose cached values only static heads read: no keys are cached for them."""
    group: int
    """Query heads per kv head."""


def choose(attention: SAFAttention, capacity: int, *, states: bool = True) -> tuple[Choice, ...]:
    """Decide how each static head of a layer decodes sequences of up to `capacity` tokens.

    states: False keeps cached values for every static head.
    """
    static = attention.static_heads
    if attention.is_pruned:
        return tuple(Choice(head, "none", "pruned") for head in static)
    group = attention.n_heads // attention.n_kv_heads
    errors = _state_errors(attention) if states else {}
    obstacles = _obstacles(attention, capacity, errors) if states else dict.fromkeys(static, "asked for")
    # the values of a kv head stay cached if any of its query heads reads them
    reading = {head // group for head in attention.live_heads} | {head // group for head in obstacles}
    return tuple(
        Choice(head, "values", obstacles[head])
        if head in obstacles
        else Choice(head, "values", f"another head reads the values of kv head {head // group}")
        if head // group in reading
        else Choice(head, "state", f"certified error {errors[head]:.1e} of a state <= {STATE_ERROR_LIMIT:.0e}")
        for head in static
    )


def make_layout(attention: SAFAttention, choices: Collection[Choice]) -> Layout:
    """Return the heads of a layer, grouped by the choices for its static heads."""
    num_heads, num_kv_heads = attention.n_heads, attention.n_kv_heads
    group = num_heads // num_kv_heads
    live = attention.live_heads
    summed, states = (tuple(c.head for c in choices if c.way == way) for way in ("values", "state"))
    key_heads, summed_heads = (tuple(sorted({head // group for head in heads})) for heads in (live, summed))
    value_heads = tuple(kv_head for kv_head in summed_heads if kv_head not in key_heads)
    return Layout(live, summed, states, key_heads, value_heads, group)


def _obstacles(attention: SAFAttention, capacity: int, state_errors: dict[int, float]) -> dict[int, str]:
    """Return the static heads that cannot decode from a state, each with the reason."""
    static = attention.static_heads
    if not state_errors:
        return dict.fromkeys(static, "the pattern is a matrix")
    window, states = BAND + 1, NUM_EXPONENTIALS * _FP64_BYTES / attention.wo.weight.element_size()
    if capacity <= window + states:
        return dict.fromkeys(static, f"the cache of {capacity} values is not larger than a state")
    return {
        head: f"certified error {error:.1e} of a state > {STATE_ERROR_LIMIT:.0e}"
        for head, error in state_errors.items()
        # written with <=, so that NaN counts as too large
        if not error <= STATE_ERROR_LIMIT
    }


def _state_errors(attention: SAFAttention) -> dict[int, float]:
    """Return the certified error of decoding each static head from a state; empty for patterns that are matrices."""
    pattern = attention.inner_attention.pattern()
    if pattern is None:
        return {}
    return dict(zip(attention.static_heads, certified_error(pattern).tolist(), strict=True))
