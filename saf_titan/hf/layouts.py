"""Which rows of the weights of an attention module of transformers belong to which head.

Three layouts cover all supported models: separate projections (Llama and similar models), GPT-2's fused `c_attn`, whose
matrices are transposed, and GPT-NeoX's `query_key_value`, which interleaves the heads.

Legend: H query heads, K kv heads, D head dim, C model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Layout(ABC):
    """The weights of an attention module by head. All tensors are views: a change of one changes the module."""

    def __init__(self, module: Any) -> None:
        self.module = module

    needs: ClassVar[tuple[str, ...]]
    """Attributes of the attention modules that have this layout."""

    @property
    @abstractmethod
    def num_kv_heads(self) -> int: ...

    @abstractmethod
    def sizes(self, num_heads: int) -> dict[str, tuple[tuple[int, int], tuple[int | None, int | None]]]:
        """Return, for each projection, its (inputs, outputs) and those that the layout needs; None for any number."""

    @property
    @abstractmethod
    def projection(self) -> nn.Module:
        """The module that computes the values; its first argument is the input of the layer."""

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """Return the weight of the output projection, (C, H * D): D columns for each head."""

    @abstractmethod
    def rows(self, kind: str, head: int) -> tuple[Tensor, Tensor | None]:
        """Return the weight rows (D, C) and the bias (D,) of one head; the bias is None if the projection has none.

        kind: "q" for a query head; "k" or "v" for the keys or values of a kv head.
        """

    def joins_heads(self, kind: str) -> bool:
        """Return whether one norm spans the queries ("q") or keys ("k") of all heads, as in Olmo 2.

        The scores of a live head then depend on the rows of all heads.
        """
        norm = getattr(self.module, f"{kind}_norm", None)
        return norm is not None and norm.weight.numel() != self.module.head_dim


class SeparateLayout(Layout):
    """Separate projections `q_proj`, `k_proj`, `v_proj`, `o_proj`."""

    needs = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim")

    @property
    def num_kv_heads(self) -> int:
        return _size(self.module.k_proj)[1] // int(self.module.head_dim)

    def sizes(self, num_heads: int) -> dict[str, tuple[tuple[int, int], tuple[int | None, int | None]]]:
        width, kv_width = num_heads * self.module.head_dim, self.num_kv_heads * self.module.head_dim
        needed = {"q_proj": (None, width), "k_proj": (None, kv_width), "v_proj": (None, kv_width)}
        return {
            name: (_size(getattr(self.module, name)), size)
            for name, size in {**needed, "o_proj": (width, None)}.items()
        }

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
    """`c_attn` (C, 3 * C), transposed, with queries, keys and values one after the other; `c_proj`."""

    needs = ("c_attn", "c_proj", "embed_dim", "num_heads", "head_dim")

    @property
    def num_kv_heads(self) -> int:
        return int(self.module.num_heads)

    def sizes(self, num_heads: int) -> dict[str, tuple[tuple[int, int], tuple[int | None, int | None]]]:
        C = num_heads * self.module.head_dim
        # the shape of the weight itself: a linear layer has the same inputs and outputs, but is not transposed
        inputs, outputs = self.module.c_attn.weight.shape
        return {"c_attn": ((inputs, outputs), (C, 3 * C)), "c_proj": (_size(self.module.c_proj), (C, C))}

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
    """`query_key_value` (H * 3 * D, C), with the queries, keys and values of one head after the other; `dense`."""

    needs = ("query_key_value", "dense", "head_size")

    @property
    def num_kv_heads(self) -> int:
        return int(self.module.config.num_attention_heads)

    def sizes(self, num_heads: int) -> dict[str, tuple[tuple[int, int], tuple[int | None, int | None]]]:
        width = num_heads * self.module.head_size
        fused, out = self.module.query_key_value, self.module.dense
        return {"query_key_value": (_size(fused), (None, 3 * width)), "dense": (_size(out), (width, None))}

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


_LAYOUTS: tuple[type[Layout], ...] = (GPT2Layout, GPTNeoXLayout, SeparateLayout)


def find_layout(module: nn.Module, num_heads: int) -> Layout:
    """Return the layout of an attention module with `num_heads` query heads.

    Raises ValueError, which names the class of the module, if the module has none of the known layouts: the rows of a
    head would be those of other heads.
    """
    kind = type(module).__name__
    found = next((layout for layout in _LAYOUTS if all(hasattr(module, name) for name in layout.needs)), None)
    if found is None:
        raise ValueError(
            f"{kind} has none of the known projections (c_attn and c_proj as in GPT-2; query_key_value and dense as in "
            "GPT-NeoX; q_proj, k_proj, v_proj and o_proj): its heads cannot be told apart"
        )
    layout = found(module)
    for name, (size, needed) in layout.sizes(num_heads).items():
        if any(number not in (None, part) for part, number in zip(size, needed, strict=True)):
            expected = " to ".join("any number" if number is None else str(number) for number in needed)
            raise ValueError(
                f"{kind}: {name} maps {size[0]} to {size[1]} numbers, expected {expected} for {num_heads} query heads "
                f"and {layout.num_kv_heads} kv heads of one width: its heads cannot be told apart"
            )
    return layout


def _size(linear: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a projection, also if its weight is quantized or transposed."""
    if hasattr(linear, "out_features"):
        return int(linear.in_features), int(linear.out_features)
    if getattr(linear, "weight", None) is None:
        raise ValueError(f"{type(linear).__name__}, a projection of attention, has no weight of its own")
    inputs, outputs = linear.weight.shape
    return int(inputs), int(outputs)


def value_weight(layout: Layout) -> tuple[Tensor, Tensor | None]:
    """Return the value rows (K * D, C) of all kv heads, and their bias (K * D,) or None, as copies."""
    weights, biases = zip(*(layout.rows("v", head) for head in range(layout.num_kv_heads)), strict=True)
    return torch.cat(weights), None if biases[0] is None else torch.cat(biases)
