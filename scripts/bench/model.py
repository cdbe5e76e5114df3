"""The decoder whose updates are timed: that of the product, without the framework around it.

Pre-LayerNorm, rotary positions, exact GELU, tied embeddings, no bias anywhere; some heads of its layers are static.
Legend: B batch, T time, H heads, U live heads, S static heads, D head dim, C model dim, L layers, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saf_titan.ops import StaticPattern, mixed_attention, prepare_pattern


class Size(NamedTuple):
    """A decoder: layers, width, heads, vocabulary."""

    layers: int
    width: int
    heads: int
    vocabulary: int


def scaled(size: Size, layers: int) -> Size:
    """Return a size with fewer layers and as much less vocabulary, so that each part keeps its share of the time."""
    return size._replace(layers=layers, vocabulary=round(size.vocabulary * layers / size.layers / 64) * 64)


GPT_124M = Size(layers=12, width=768, heads=12, vocabulary=50_304)
GPT_1B = Size(layers=32, width=1536, heads=16, vocabulary=50_304)


def spread_heads(num_heads: int, share: float) -> tuple[int, ...]:
    """Return the numbers of the static heads of a layer: a share of all heads, evenly spread."""
    return spread(num_heads, round(num_heads * share))


def spread(num_heads: int, count: int) -> tuple[int, ...]:
    """Return the numbers of `count` heads, evenly spread over a layer."""
    return tuple(i * num_heads // count for i in range(count)) if count else ()


PLACEMENTS = ("even", "early")


def place_heads(size: Size, share: float, placement: str) -> list[tuple[int, ...]]:
    """Return the static heads of each layer.

    placement: "even", as many in each layer; "early", two thirds of them in the first third of the layers, as a
    selection by variance finds them.
    """
    if placement == "even":
        return [spread_heads(size.heads, share)] * size.layers
    assert placement == "early", placement
    total = round(size.layers * size.heads * share)
    first = max(1, round(size.layers / 3))
    early = min(round(2 * total / 3), first * size.heads)
    counts = [*_shares(early, first), *_shares(total - early, size.layers - first)]
    return [spread(size.heads, count) for count in counts]


def _shares(total: int, parts: int) -> list[int]:
    """Return whole numbers as equal as possible, with a given sum."""
    return [(i + 1) * total // parts - i * total // parts for i in range(parts)]


# cached, because all layers of a model have the same pattern, which takes seconds to prepare for a long sequence
@functools.lru_cache(maxsize=8)
def sample_pattern(num_heads: int, T: int) -> StaticPattern:
    """Return patterns like those of frozen heads: power laws of the lag and noisy columns; every third has a sink."""
    generator = torch.Generator().manual_seed(0)
    lag = torch.arange(T, dtype=torch.float64)
    exponents = torch.linspace(0.5, 2.0, num_heads, dtype=torch.float64)
    alpha = 0.3 * torch.randn(num_heads, T, generator=generator, dtype=torch.float64)
    alpha[::3, 0] = 8.0
    return prepare_pattern(alpha, -exponents[:, None] * lag.log1p())


class Rotation(nn.Module):
    """Rotary positions: the two halves of a head are rotated against each other, in float32."""

    def __init__(self, head_dim: int, T: int) -> None:
        super().__init__()
        frequencies = 1.0 / (10_000.0 ** (torch.arange(0, head_dim, 2).float() / head_dim))
        angles_TD = torch.outer(torch.arange(T).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos_T1D", angles_TD.cos()[:, None])
        self.register_buffer("sin_T1D", angles_TD.sin()[:, None])

    def forward(self, x_BTUD: Tensor) -> Tensor:
        T, wide = x_BTUD.shape[1], x_BTUD.float()
        first, second = wide.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return (wide * self.cos_T1D[:T] + turned * self.sin_T1D[:T]).type_as(x_BTUD)


class Attention(nn.Module):
    """Attention that skips the rows of static heads in the query and key projections; parameters keep their shapes.

    free_mixing: static heads return their values unmixed, which gives an upper bound of the gain of an update.
    """

    def __init__(self, size: Size, static: tuple[int, ...], T: int, backend: str, free_mixing: bool) -> None:
        super().__init__()
        self.head_dim = size.width // size.heads
        self.free_mixing = free_mixing
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size.width, size.width, bias=False) for _ in range(4))
        self.rotation = Rotation(self.head_dim, T)
        live = [h for h in range(size.heads) if h not in static]
        # a backend is for layers with live and static heads; others have only one way
        self.backend = backend if live and static else "auto"
        rows = torch.arange(size.width).view(size.heads, -1)[live].flatten()
        self.register_buffer("live_rows", rows)
        self.register_buffer("live_heads", torch.tensor(live, dtype=torch.int64))
        self.register_buffer("static_heads", torch.tensor(static, dtype=torch.int64))
        self.pattern_fields = ()
        if static:
            pattern = sample_pattern(len(static), T)
            self.pattern_fields = pattern._fields
            for name, tensor in pattern._asdict().items():
                self.register_buffer(name, tensor)

    def forward(self, x_BTC: Tensor) -> Tensor:
        v_BTHD = self.wv(x_BTC).unflatten(-1, (-1, self.head_dim))
        q_BTUD = k_BTUD = None
        if self.live_heads.numel():
            q_BTUD, k_BTUD = (self.rotation(self._live(w, x_BTC)) for w in (self.wq, self.wk))
        pattern = StaticPattern(*(getattr(self, name) for name in self.pattern_fields)) if self.pattern_fields else None
        if self.free_mixing:
            return self.wo(self._freely(q_BTUD, k_BTUD, v_BTHD).flatten(2))
        y_BTHD = mixed_attention(
            q_BTUD,
            k_BTUD,
            v_BTHD,
            live_heads=self.live_heads,
            static_heads=self.static_heads,
            pattern=pattern,
            backend=self.backend,
        )
        return self.wo(y_BTHD.flatten(2))

    def _live(self, projection: nn.Linear, x_BTC: Tensor) -> Tensor:
        """Queries or keys of the live heads, [B, T, U, D]."""
        weight = projection.weight.index_select(0, self.live_rows) if self.pattern_fields else projection.weight
        return F.linear(x_BTC, weight).unflatten(-1, (-1, self.head_dim))

    @staticmethod
    def _freely(q_BTUD: Tensor | None, k_BTUD: Tensor | None, v_BTHD: Tensor) -> Tensor:
        if q_BTUD is None or k_BTUD is None:
            return v_BTHD
        num_live = q_BTUD.shape[2]
        qkv = (x.transpose(1, 2) for x in (q_BTUD, k_BTUD, v_BTHD[:, :, :num_live]))
        y_BUTD = F.scaled_dot_product_attention(*qkv, is_causal=True)
        return torch.cat([y_BUTD.transpose(1, 2), v_BTHD[:, :, num_live:]], dim=2)


def norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-5, bias=False)


class Block(nn.Module):
    """Pre-norm attention and a feed-forward layer of four times the width with exact GELU."""

    def __init__(self, size: Size, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm, self.mlp_norm = norm(size.width), norm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        return x_BTC + self.down(F.gelu(self.up(self.mlp_norm(x_BTC))))


class Decoder(nn.Module):
    """A decoder with token embeddings and a tied output matrix; its forward returns the cross entropy."""

    def __init__(
        self,
        size: Size,
        T: int,
        share: float = 0.0,
        backend: str = "auto",
        free_mixing: bool = False,
        placement: str = "even",
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, static, T, backend, free_mixing))
            for static in place_heads(size, share, placement)
        )
        self.norm = norm(size.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("wo.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers) if is_residual else 0.02)

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """All layers, without the logits: [B, T, C]."""
        x_BTC = self.tokens(tokens_BT)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.norm(x_BTC)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = F.linear(self.hidden(tokens_BT), self.tokens.weight)
        return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten())


class Update:
    """One whole update when called: forward, backward, gradient clipping, AdamW.

    low_precision: matrix products in bfloat16 by torch.autocast, residual stream and norms in float32, as with
    training.mixed_precision_param = "bfloat16_autocast".
    """

    def __init__(self, model: Decoder, tokens_BT: Tensor, low_precision: bool) -> None:
        self.model, self.tokens_BT, self.low_precision = model, tokens_BT, low_precision
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> Tensor:
        with torch.autocast(self.tokens_BT.device.type, torch.bfloat16, enabled=self.low_precision):
            loss = self.model(self.tokens_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def prefill(self) -> Tensor:
        """Run all layers forward, without gradients and without logits, of which a prompt needs one row."""
        with torch.no_grad(), torch.autocast(self.tokens_BT.device.type, torch.bfloat16, enabled=self.low_precision):
            return self.model.hidden(self.tokens_BT)
