"""Where the weights of a head lie in an attention module of transformers.

Three layouts serve all supported models: separate projections (Llama and its relatives), GPT-2's fused `c_attn`, whose
matrices are transposed, and GPT-NeoX's `query_key_value`, which interleaves the heads.

Legend: H query heads, K kv heads, D head width, C model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Layout(ABC):
    """The weights of an attention module by head. Everything returned is a view: writing to it changes the module."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @property
    @abstractmethod
    def num_kv_heads(self) -> int: ...

    @property
    @abstractmethod
    def projection(self) -> nn.Module:
        """The module that computes the values; its first argument is the input of the layer."""

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """(C, H * D): a block of columns for each head."""

    @abstractmethod
    def rows(self, kind: str, head: int) -> tuple[Tensor, Tensor | None]:
        """Weight rows (D, C) and bias (D,) of a query head, kind "q", or of a kv head, kind "k" or "v"."""

    def joins_heads(self, kind: str) -> bool:
        """Whether a norm over all heads reads the queries ("q") or keys ("k"): live heads then depend on all rows."""
        norm = getattr(self.module, f"{kind}_norm", None)
        return norm is not None and norm.weight.numel() != self.module.head_dim


class SeparateLayout(Layout):
    """`q_proj`, `k_proj`, `v_proj`, `o_proj`."""

    @property
    def num_kv_heads(self) -> int:
        return int(self.module.k_proj.weight.shape[0]) // int(self.module.head_dim)

    @property
    def projection(self) -> nn.Module:
        return self.module.v_proj

    @property
    def output_weight(self) -> Tensor:
        return self.module.o_proj.weight.detach()

    def rows(self, kind: str, head: int) -> tuple[Tensor, Tensor | None]:
        linear, D = getattr(self.module, f"{kind}_proj"), self.module.head_dim
        block = slice(head * D, (head + 1) * D)
        return linear.weight.detach()[block], None if linear.bias is None else linear.bias.detach()[block]


class GPT2Layout(Layout):
    """`c_attn` (C, 3 * C), transposed: queries, keys, values; `c_proj`."""

    @property
    def num_kv_heads(self) -> int:
        return int(self.module.num_heads)

    @property
    def projection(self) -> nn.Module:
        return self.module.c_attn

    @property
    def output_weight(self) -> Tensor:
        return self.module.c_proj.weight.detach().T

    def rows(self, kind: str, head: int) -> tuple[Tensor, Tensor | None]:
        start = "qkv".index(kind) * self.module.embed_dim + head * self.module.head_dim
        block = slice(start, start + self.module.head_dim)
        return self.module.c_attn.weight.detach()[:, block].T, self.module.c_attn.bias.detach()[block]


class GPTNeoXLayout(Layout):
    """`query_key_value` (H * 3 * D, C): of each head its queries, keys, values; `dense`."""

    @property
    def num_kv_heads(self) -> int:
        return int(self.module.config.num_attention_heads)

    @property
    def projection(self) -> nn.Module:
        return self.module.query_key_value

    @property
    def output_weight(self) -> Tensor:
        return self.module.dense.weight.detach()

    def rows(self, kind: str, head: int) -> tuple[Tensor, Tensor | None]:
        D, linear = self.module.head_size, self.module.query_key_value
        start = (3 * head + "qkv".index(kind)) * D
        block = slice(start, start + D)
        return linear.weight.detach()[block], None if linear.bias is None else linear.bias.detach()[block]


_LAYOUTS: dict[str, Callable[[nn.Module], Layout]] = {
    "c_attn": GPT2Layout,
    "query_key_value": GPTNeoXLayout,
    "q_proj": SeparateLayout,
}


def find_layout(module: nn.Module) -> Layout:
    """The layout of an attention module; ValueError, naming its class, if it is none of those known."""
    for name, layout in _LAYOUTS.items():
        if hasattr(module, name):
            return layout(module)
    raise ValueError(
        f"{type(module).__name__} has none of the projections {', '.join(_LAYOUTS)}: its heads cannot be told apart"
    )


def value_weight(layout: Layout) -> tuple[Tensor, Tensor | None]:
    """The value rows (K * D, C) of all kv heads, and their bias (K * D,); copies where the layout is fused."""
    weights, biases = zip(*(layout.rows("v", head) for head in range(layout.num_kv_heads)), strict=True)
    return torch.cat(weights), None if biases[0] is None else torch.cat(biases)
