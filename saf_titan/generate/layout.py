"""Which heads of a layer keep what while text is generated, and why.

- A live head needs the keys and the values of its kv head.
- A static head needs values alone. Its step is one sum of the cached values with a row of its pattern.
- A static head whose far weights are sums of exponentials needs no cache of values: the newest values and a state of
  fixed size do. That saves something only if no other head of its kv head reads cached values.
- A pruned head needs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from saf_titan.heads.kv_groups import unread_kv_heads
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.exponentials import BAND, NUM_EXPONENTIALS
from saf_titan.ops.pattern import PATHS

STATE_ERROR_LIMIT = 1e-5
"""Largest certified error, as a share of the largest value row, at which a head decodes from a fixed-size state."""
_FP64_BYTES = 8


class Choice(NamedTuple):
    """How one static head decodes, with the reason in words."""

    head: int
    way: str
    """ "values": a sum over cached values; "state": a fixed-size state; "none": pruned."""
    reason: str


class Layout(NamedTuple):
    """The heads of one layer by what they keep; all ascending."""

    live: tuple[int, ...]
    summed: tuple[int, ...]
    """Static heads that weigh cached values."""
    states: tuple[int, ...]
    """Static heads with a state of fixed size."""
    key_heads: tuple[int, ...]
    """Kv heads whose keys are cached."""
    value_heads: tuple[int, ...]
    """Kv heads whose values are cached."""
    group: int
    """Query heads of a kv head."""


def choose(attention: SAFAttention, capacity: int, *, states: bool = True) -> tuple[Choice, ...]:
    """Decide how each static head of a layer decodes sequences of up to `capacity` tokens.

    states: False keeps cached values for every static head.
    """
    static = attention.static_heads
    if attention.is_pruned:
        return tuple(Choice(head, "none", "pruned") for head in static)
    group = attention.n_heads // attention.n_kv_heads
    obstacles = _obstacles(attention, capacity) if states else dict.fromkeys(static, "asked for")
    # cached values of a kv head stay while one of its heads reads them
    reading = {head // group for head in attention.live_heads} | {head // group for head in obstacles}
    return tuple(
        Choice(head, "values", obstacles[head])
        if head in obstacles
        else Choice(head, "values", f"another head reads the values of kv head {head // group}")
        if head // group in reading
        else Choice(head, "state", f"certified error {_state_error(attention, head):.1e} <= {STATE_ERROR_LIMIT:.0e}")
        for head in static
    )


def make_layout(attention: SAFAttention, choices: Collection[Choice]) -> Layout:
    """Sort the heads of a layer by the choices for its static heads."""
    num_heads, num_kv_heads = attention.n_heads, attention.n_kv_heads

    def read_by(heads: Collection[int]) -> tuple[int, ...]:
        others = [head for head in range(num_heads) if head not in heads]
        unread = unread_kv_heads(others, num_heads=num_heads, num_kv_heads=num_kv_heads)
        return tuple(kv_head for kv_head in range(num_kv_heads) if kv_head not in unread)

    live = attention.live_heads
    summed, states = (tuple(c.head for c in choices if c.way == way) for way in ("values", "state"))
    return Layout(live, summed, states, read_by(live), read_by((*live, *summed)), num_heads // num_kv_heads)


def _obstacles(attention: SAFAttention, capacity: int) -> dict[int, str]:
    """Why static heads cannot decode from a state, for those that cannot."""
    pattern, static = attention.inner_attention.pattern(), attention.static_heads
    if pattern is None:
        return dict.fromkeys(static, "the pattern is a matrix")
    window, states = BAND + 1, NUM_EXPONENTIALS * _FP64_BYTES / attention.wo.weight.element_size()
    if capacity <= window + states:
        return dict.fromkeys(static, f"the cache of {capacity} values is not larger than a state")
    errors = {head: _state_error(attention, head) for head in static}
    return {
        head: f"far weights certified to {error:.1e} only, above {STATE_ERROR_LIMIT:.0e}"
        for head, error in errors.items()
        # a NaN bound is no bound
        if not error <= STATE_ERROR_LIMIT
    }


def _state_error(attention: SAFAttention, head: int) -> float:
    pattern = attention.inner_attention.pattern()
    assert pattern is not None
    errors = pattern.error_HP[attention.static_heads.index(head)]
    return max(errors[PATHS.index("band")].item(), errors[PATHS.index("gemm")].item())
