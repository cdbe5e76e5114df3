"""One attention layer of a transformers model, with the interface that calibration, selection and installation need.

Each attention module has a `HeadsOfLayer` as an attribute, where the attention function finds it. `HeadsOfLayer` is not
a torch module, so it adds no weights, and a change of dtype does not reach its patterns: they stay float32 in a
bfloat16 model.

Legend: B sequences, T time, C model width, H query heads, K kv heads, S static heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saf_titan.heads.kv_groups import unused_heads
from saf_titan.hf.layouts import find_layout, value_weight
from saf_titan.hf.static_heads import CompactMixer, DenseMixer, Mixer, PrunedMixer
from saf_titan.saf.calibrate.capture import CaptureFn

ATTRIBUTE = "saf_heads"


class Tap(nn.Module):
    """Return the outputs of all heads unchanged, so that hooks on this module can watch values and outputs."""

    def forward(self, q: None, k: None, v_BTKD: Tensor, y_BTHD: Tensor) -> Tensor:
        return y_BTHD


@dataclass
class _Matrix:
    """A weight, (outputs, inputs) as in `nn.Linear`, with its bias."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


class HeadsOfLayer:
    """The heads of one attention module: which of them are static, and their patterns."""

    def __init__(self, module: Any, layer: int) -> None:
        self.module, self.layer = module, layer
        num_heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
        if not isinstance(num_heads, int):
            raise ValueError(f"{type(module).__name__}: its configuration gives no single num_attention_heads")
        self.num_heads = num_heads
        self.layout = find_layout(module, self.num_heads)
        self.num_kv_heads = self.layout.num_kv_heads
        self.capture: CaptureFn | None = None
        self.inner_attention = Tap()
        self.static_heads: tuple[int, ...] = ()
        self.mixer: Mixer | None = None

    @property
    def live_heads(self) -> tuple[int, ...]:
        return tuple(head for head in range(self.num_heads) if head not in self.static_heads)

    @property
    def output_heads(self) -> tuple[int, ...]:
        """Return all heads; the output of a pruned head is zero."""
        return tuple(range(self.num_heads))

    @property
    def is_plain(self) -> bool:
        """Whether the layer has no static head and nothing watches it, so that the model's own attention is enough."""
        return not self.static_heads and self.capture is None and not self.inner_attention._forward_hooks

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None:
        """Make exactly ``heads`` (ascending) static, with the compact patterns alpha and rho, fp32 (S, T_fit)."""
        self._set(heads, CompactMixer(alpha_ST, rho_ST))

    def set_dense(self, heads: tuple[int, ...], p_STT: Tensor) -> None:
        """Make exactly ``heads`` (ascending) static, with a matrix each, fp32 (S, T_fit, T_fit)."""
        self._set(heads, DenseMixer(p_STT))

    def set_pruned(self, heads: tuple[int, ...]) -> None:
        """Prune exactly ``heads`` (ascending): their output becomes zero."""
        self._set(heads, PrunedMixer())

    def set_live(self) -> None:
        """Make every head live again."""
        self._set((), None)

    def _set(self, heads: tuple[int, ...], mixer: Mixer | None) -> None:
        assert list(heads) == sorted(set(heads)), heads
        self.static_heads, self.mixer = tuple(heads), mixer

    def select(self, x_BHTD: Tensor, heads: tuple[int, ...]) -> Tensor:
        """Return, for each of some query heads, its queries, or the keys or values of its kv head.

        x: (B, H, T, D) or (B, K, T, D). Returns (B, len(heads), T, D).
        """
        group = self.num_heads // x_BHTD.shape[1]
        index = torch.tensor([head // group for head in heads], dtype=torch.int64, device=x_BHTD.device)
        return x_BHTD.index_select(1, index)

    def natural_order(self, device: torch.device) -> Tensor:
        """Return the place of each head in the list of live heads followed by static heads, int64 (H,)."""
        order = self.live_heads + self.static_heads
        return torch.tensor([order.index(head) for head in range(self.num_heads)], dtype=torch.int64, device=device)

    @torch.no_grad()
    def zero_unused_weights(self, *, frees_values: bool) -> None:
        """Zero the weights that static heads no longer use, in place.

        Where a norm over all heads reads queries or keys (Olmo 2), their rows stay, because the scores of live heads
        depend on them.

        frees_values: whether the values and outputs of static heads are unused as well, as those of pruned heads are.
        """
        unused = unused_heads(
            self.static_heads, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, frees_values=frees_values
        )
        for kind, heads in (("q", unused.q), ("k", unused.k), ("v", unused.v)):
            if kind == "v" or not self.layout.joins_heads(kind):
                for head in heads:
                    for part in self.layout.rows(kind, head):
                        if part is not None:
                            part.zero_()
        D = self.layout.output_weight.shape[1] // self.num_heads
        for head in unused.o:
            self.layout.output_weight[:, head * D : (head + 1) * D].zero_()

    # the following attributes are those that selectors and compensation read from a layer

    @property
    def wo(self) -> _Matrix:
        return _Matrix(self.layout.output_weight)

    @property
    def wv(self) -> _Matrix:
        return _Matrix(*value_weight(self.layout))

    @property
    def qkv_linear(self) -> HeadsOfLayer:
        """Return this object: it has the hooks and value rows that are asked of a projection."""
        return self

    def register_forward_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, args)`` before the values are computed; args[0] is the input of the layer (B, T, C)."""
        return self.layout.projection.register_forward_pre_hook(hook)

    def register_forward_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call ``hook(module, args, attended_BTC)`` after the attention module; `attended_BTC` is its output."""
        return self.module.register_forward_hook(lambda module, args, output: hook(module, args, output[0]))


def heads_of(module: nn.Module) -> HeadsOfLayer | None:
    """Return the `HeadsOfLayer` that `attach` has set on an attention module; None if it has set none."""
    found: HeadsOfLayer | None = getattr(module, ATTRIBUTE, None)
    return found


def attach(model: nn.Module) -> list[HeadsOfLayer]:
    """Give each attention module of a transformers decoder its `HeadsOfLayer`, and return these in layer order.

    Raises ValueError if the model does not use transformers' attention interface, or if the layout of its weights is
    unknown.
    """
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(f"{name} does not use transformers' attention interface, so its heads cannot be reached")
    layers = []
    for module in model.modules():
        number: Any = getattr(module, "layer_idx", None)
        if type(module).__name__.endswith("Attention") and isinstance(number, int):
            if heads_of(module) is None:
                setattr(module, ATTRIBUTE, HeadsOfLayer(module, number))
            layers.append(heads_of(module))
    found = [layer for layer in layers if layer is not None]
    if [layer.layer for layer in found] != list(range(len(found))) or not found:
        raise ValueError(
            f"{name}: attention modules are expected to be numbered 0, 1, ... by layer_idx, got "
            f"{[layer.layer for layer in found]}"
        )
    return found
