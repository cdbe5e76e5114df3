"""The sizes of the model flavors, known without building a model.

The rows of `gpt` are ours. Those of `llama3` repeat torchtitan 0.3.0, so that a configuration can be checked before
torch is imported.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What the head and layer numbers of a run refer to."""

    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    num_kv_heads: int
    dim: int
    """Width of the residual stream."""
    tied: bool
    """The output matrix is the token embedding."""


def _gpt(num_layers: int, num_heads: int, dim: int) -> ModelShape:
    return ModelShape(num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_heads, dim=dim, tied=True)


def _llama3(num_layers: int, num_heads: int, num_kv_heads: int, dim: int, *, tied: bool) -> ModelShape:
    return ModelShape(num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads, dim=dim, tied=tied)


SHAPES: dict[str, dict[str, ModelShape]] = {
    "gpt": {
        "debug": _gpt(4, 8, 144),
        "124m": _gpt(12, 12, 768),
        "1b": _gpt(32, 16, 1536),
    },
    "llama3": {
        "debugmodel": _llama3(6, 16, 16, 256, tied=False),
        "1B": _llama3(16, 32, 8, 2048, tied=True),
        "3B": _llama3(28, 24, 8, 3072, tied=True),
        "8B": _llama3(32, 32, 8, 4096, tied=False),
        "70B": _llama3(80, 64, 8, 8192, tied=False),
        "405B": _llama3(126, 128, 8, 16384, tied=False),
    },
}
