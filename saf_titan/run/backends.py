"""The operator that mixes the heads of each layer: a check that the requested one can run, and lines for the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from saf_titan.config import ConfigError, Problem, RunConfig
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.mixed_attention.op import BACKENDS, device_obstacle


def require_backend(run: RunConfig, device_type: str) -> None:
    """Raise ConfigError if `model.attention_backend` cannot run on the device; the message lists those that can.

    A run calls this before it builds anything, because the backend is first used after the freeze, days later perhaps.
    """
    chosen = run.model.attention_backend
    obstacle = None if run.model.fuse_qkv else _obstacle(run, chosen, device_type)
    if obstacle is not None:
        allowed = [name for name in BACKENDS if _obstacle(run, name, device_type) is None]
        raise ConfigError(
            [Problem("", "model.attention_backend", f'"{chosen}"', f"{obstacle}; choose {' or '.join(allowed)}")]
        )


def _obstacle(run: RunConfig, backend: str, device_type: str) -> str | None:
    if backend == "fused" and run.saf.enable and run.saf.pattern_lr:
        return f"has no gradient of the pattern, which saf.pattern_lr = {run.saf.pattern_lr:g} needs"
    return device_obstacle(backend, run.shape.head_dim, device_type)


def backend_lines(attentions: Sequence[SAFAttention]) -> list[str]:
    """Return one line for each group of neighbouring layers with the same operator; an empty list without layers."""
    described = [(layer, attention.describe_backend()) for layer, attention in enumerate(attentions)]
    lines = []
    for text, group in groupby(described, key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        place = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        lines.append(f"Attention of {place}: {text}")
    return lines
