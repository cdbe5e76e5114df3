"""The sizes of the model flavors, known without building a model.

The rows of `gpt` are ours. Those of the other families repeat torchtitan 0.3.0, so that a configuration can be checked
before torch is imported. A dense decoder of torchtitan is added by its rows here and nothing else.
"""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a model."""

    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    num_kv_heads: int
    """Kv heads of a layer, each shared by the same number of query heads."""
    head_dim: int
    dim: int
    """Width of the residual stream."""
    vocab_size: int
    """Rows of the embedding."""
    tied: bool
    """Whether the output matrix is the token embedding."""

    @property
    def total_heads(self) -> int:
        """Query heads of all layers."""
        return self.num_layers * self.num_heads


def _shape(
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    dim: int,
    *,
    tied: bool,
    vocab_size: int,
    head_dim: int | None = None,
) -> ModelShape:
    """``head_dim``: dim / num_heads by default."""
    return ModelShape(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=dim // num_heads if head_dim is None else head_dim,
        dim=dim,
        vocab_size=vocab_size,
        tied=tied,
    )


def _gpt(num_layers: int, num_heads: int, dim: int) -> ModelShape:
    # GPT-2's 50257 tokens, padded to a multiple of 128
    return _shape(num_layers, num_heads, num_heads, dim, tied=True, vocab_size=50304)


_llama3 = partial(_shape, vocab_size=128256)
_qwen3 = partial(_shape, vocab_size=151936, head_dim=128)


SHAPES: dict[str, dict[str, ModelShape]] = {
    "gpt": {
        "debug": _gpt(4, 8, 144),
        "124m": _gpt(12, 12, 768),
        "1b": _gpt(32, 16, 1536),
    },
    "llama3": {
        "debugmodel": _llama3(6, 16, 16, 256, tied=False, vocab_size=2048),
        "1B": _llama3(16, 32, 8, 2048, tied=True),
        "3B": _llama3(28, 24, 8, 3072, tied=True),
        "8B": _llama3(32, 32, 8, 4096, tied=False),
        "70B": _llama3(80, 64, 8, 8192, tied=False),
        "405B": _llama3(126, 128, 8, 16384, tied=False),
    },
    "qwen3": {
        "debugmodel": _qwen3(8, 16, 8, 256, tied=True, vocab_size=2048),
        "0.6B": _qwen3(28, 16, 8, 1024, tied=True),
        "1.7B": _qwen3(28, 16, 8, 2048, tied=True),
        "4B": _qwen3(36, 32, 8, 2560, tied=True),
        "8B": _qwen3(36, 32, 8, 4096, tied=False),
        "14B": _qwen3(40, 40, 8, 5120, tied=False),
        "32B": _qwen3(64, 64, 8, 5120, tied=False),
    },
}

FAMILIES: dict[str, str] = {
    family: f"{'our own decoder' if family == 'gpt' else 'of torchtitan'}; flavors {', '.join(flavors)}"
    for family, flavors in SHAPES.items()
}
"""Description of each family in --help."""
