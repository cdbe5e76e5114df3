"""The decoder whose updates are timed: GPT-2's block with some static heads, without a framework.

Shapes: B batch, T time, H heads, U live heads, D head dim, C model dim, L layers.
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
GPT_1B = Size(layers=24, width=2048, heads=16, vocabulary=50_304)


def spread_heads(num_heads: int, share: float) -> tuple[int, ...]:
    """Return the numbers of the static heads of a layer: a share of all heads, evenly spread."""
    count = round(num_heads * share)
    return tuple(i * num_heads // count for i in range(count)) if count else ()


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


class Attention(nn.Module):
    """Attention that skips the rows of static heads in the query and key projections; parameters keep their shapes.

    free_mixing: static heads return their values unmixed, which gives an upper bound of the gain of an update.
    """

    def __init__(self, size: Size, static: tuple[int, ...], T: int, backend: str, free_mixing: bool) -> None:
        super().__init__()
        self.head_dim = size.width // size.heads
        self.backend, self.free_mixing = backend, free_mixing
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size.width, size.width, bias=False) for _ in range(4))
        live = [h for h in range(size.heads) if h not in static]
        rows = torch.arange(size.width).view(size.heads, -1)[live].flatten()
        self.register_buffer("live_rows", rows)
        self.register_buffer("live_heads", torch.tensor(live))
        self.register_buffer("static_heads", torch.tensor(static, dtype=torch.int64))
        self.pattern_fields = ()
        if static:
            pattern = sample_pattern(len(static), T)
            self.pattern_fields = pattern._fields
            for name, tensor in pattern._asdict().items():
                self.register_buffer(name, tensor)

    def forward(self, x_BTC: Tensor) -> Tensor:
        v_BTHD = self.wv(x_BTC).unflatten(-1, (-1, self.head_dim))
        if not self.pattern_fields:
            q, k = (w(x_BTC).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk))
            pattern = None
        else:
            weights = (w.weight.index_select(0, self.live_rows) for w in (self.wq, self.wk))
            q, k = (F.linear(x_BTC, weight).unflatten(-1, (-1, self.head_dim)) for weight in weights)
            pattern = StaticPattern(*(getattr(self, name) for name in self.pattern_fields))
        if self.free_mixing:
            y_live = self._live_attention(q, k, v_BTHD[:, :, : q.shape[2]])
            return self.wo(torch.cat([y_live, v_BTHD[:, :, q.shape[2] :]], dim=2).flatten(2))
        y_BTHD = mixed_attention(
            q,
            k,
            v_BTHD,
            live_heads=self.live_heads,
            static_heads=self.static_heads,
            pattern=pattern,
            # a layer without static heads has only one implementation
            backend=self.backend if pattern is not None else "auto",
        )
        return self.wo(y_BTHD.flatten(2))

    @staticmethod
    def _live_attention(*qkv_BTUD: Tensor) -> Tensor:
        y_BUTD = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in qkv_BTUD), is_causal=True)
        return y_BUTD.transpose(1, 2)


class Block(nn.Module):
    """Pre-norm attention and a GELU feed-forward layer of four times the width."""

    def __init__(self, size: Size, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm, self.mlp_norm = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        return x_BTC + self.down(F.gelu(self.up(self.mlp_norm(x_BTC)), approximate="tanh"))


class Decoder(nn.Module):
    """A decoder with token and position embeddings; its forward returns the cross entropy."""

    def __init__(
        self, size: Size, T: int, share: float = 0.0, backend: str = "auto", free_mixing: bool = False
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(T, size.width)
        static = spread_heads(size.heads, share)
        self.blocks = nn.ModuleList(
            Block(size, Attention(size, static, T, backend, free_mixing)) for _ in range(size.layers)
        )
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(
                    parameter, std=0.02 / math.sqrt(2 * size.layers) if name.endswith("wo.weight") else 0.02
                )

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.tokens(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV = self.head(self.norm(x_BTC))
        return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten())


class Update:
    """One whole update when called: forward, backward, gradient clipping, AdamW."""

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
        """Run the forward alone, without gradients."""
        with torch.no_grad(), torch.autocast(self.tokens_BT.device.type, torch.bfloat16, enabled=self.low_precision):
            return self.model(self.tokens_BT)
