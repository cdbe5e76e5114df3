"""The GPT decoder: pre-LayerNorm, exact GELU, tied embeddings, RoPE or learned positions.

Module names follow torchtitan (``layers.N.attention.qkv_linear.wq`` ...). Legend: B batch, T time, C model width.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, TransformerBlock
from torchtitan.models.common.attention import AttentionMasksType
from torchtitan.models.common.param_init import skip_param_init

from saf_titan.config.shapes import ModelShape
from saf_titan.layers.attention import MixedAttention, SAFAttention
from saf_titan.layers.mlp import GeluMLP
from saf_titan.layers.norm import LayerNorm
from saf_titan.layers.position import NoRope
from saf_titan.layers.qkv import SplitQKV
from saf_titan.models.decoder import FreezableDecoder
from saf_titan.models.init import normal


class GPTBlock(TransformerBlock):
    """``x + attention(norm(x))`` then ``h + feed_forward(norm(h))``."""

    @dataclass(kw_only=True, slots=True)
    class Config(TransformerBlock.Config):
        pass

    def __init__(self, config: Config):
        super().__init__()
        self.attention = config.attention.build()
        self.feed_forward = config.feed_forward.build()
        self.attention_norm = config.attention_norm.build()
        self.ffn_norm = config.ffn_norm.build()

    def forward(
        self, x_BTC: Tensor, attention_masks: AttentionMasksType | None, positions: Tensor | None = None
    ) -> Tensor:
        h_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), attention_masks, positions)
        return h_BTC + self.feed_forward(self.ffn_norm(h_BTC))


class GPT(FreezableDecoder):
    """A freezable decoder with optional learned positions."""

    @dataclass(kw_only=True, slots=True)
    class Config(FreezableDecoder.Config):
        pos_embeddings: Embedding.Config | None = None
        autocast: bool = False
        """Matrix products in bfloat16 by torch.autocast; the residual stream and norms stay in the type of the
        weights."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.autocast = config.autocast
        self.pos_embeddings = config.pos_embeddings.build() if config.pos_embeddings is not None else None

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, attention_masks: AttentionMasksType | None = None
    ) -> Tensor:
        """tokens int64 [B, T] -> logits [B, T, vocabulary]."""
        # disabled, it would end an autocast of the caller
        with torch.autocast(tokens.device.type, torch.bfloat16) if self.autocast else nullcontext():
            return self._forward(tokens, positions, attention_masks)

    def _forward(self, tokens: Tensor, positions: Tensor | None, attention_masks: AttentionMasksType | None) -> Tensor:
        h_BTC = self.tok_embeddings(tokens)
        if self.pos_embeddings is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
            h_BTC = h_BTC + self.pos_embeddings(positions)
        for layer in self.layers.values():
            h_BTC = layer(h_BTC, attention_masks, positions)
        h_BTC = self.norm(h_BTC)
        return h_BTC if self._skip_lm_head else self.lm_head(h_BTC)


def gpt_config(
    shape: ModelShape,
    *,
    max_seq_len: int,
    position: str,
    rope_theta: float,
    init_std: float,
    norm_eps: float,
    attention_backend: str,
    bias: bool = False,
    gelu: str = "exact",
    autocast: bool = False,
) -> GPT.Config:
    """Return the config tree of a GPT decoder.

    Weights are drawn as in the published runs: with standard deviation init_std, and init_std / sqrt(2 * layers) for
    the two maps that write into the residual stream. Embeddings are tied to the output head.
    With ``bias``, every layer and norm except the output head has biases, which start at zero.
    """
    residual_std = init_std / (2 * shape.num_layers) ** 0.5

    key_width = shape.num_kv_heads * shape.head_dim

    zero_bias = {"bias": nn.init.zeros_} if bias else {}

    def linear(in_features: int, out_features: int, std: float = init_std) -> Linear.Config:
        init = {"weight": normal(std)} | zero_bias
        return Linear.Config(in_features=in_features, out_features=out_features, bias=bias, param_init=init)

    def norm() -> LayerNorm.Config:
        init = {"weight": nn.init.ones_} | zero_bias
        return LayerNorm.Config(normalized_shape=shape.dim, eps=norm_eps, bias=bias, param_init=init)

    def rope() -> CosSinRoPE.Config | NoRope.Config:
        if position == "learned":
            return NoRope.Config(max_seq_len=max_seq_len)
        return CosSinRoPE.Config(dim=shape.head_dim, max_seq_len=max_seq_len, theta=rope_theta)

    def block() -> GPTBlock.Config:
        return GPTBlock.Config(
            attention_norm=norm(),
            attention=SAFAttention.Config(
                n_heads=shape.num_heads,
                n_kv_heads=shape.num_kv_heads,
                dim=shape.dim,
                rope=rope(),
                qkv_linear=SplitQKV.Config(
                    head_dim=shape.head_dim,
                    wq=linear(shape.dim, shape.dim),
                    wk=linear(shape.dim, key_width),
                    wv=linear(shape.dim, key_width),
                ),
                wo=linear(shape.dim, shape.dim, residual_std),
                inner_attention=MixedAttention.Config(num_heads=shape.num_heads, backend=attention_backend),
            ),
            ffn_norm=norm(),
            feed_forward=GeluMLP.Config(
                w1=linear(shape.dim, 4 * shape.dim),
                w2=linear(4 * shape.dim, shape.dim, residual_std),
                approximate="tanh" if gelu == "tanh" else "none",
            ),
        )

    positions = None
    if position == "learned":
        positions = Embedding.Config(
            num_embeddings=max_seq_len, embedding_dim=shape.dim, param_init={"weight": normal(init_std)}
        )
    return GPT.Config(
        dim=shape.dim,
        vocab_size=shape.vocab_size,
        # the matrix is tied to the output head, which initialises it
        tok_embeddings=Embedding.Config(
            num_embeddings=shape.vocab_size, embedding_dim=shape.dim, param_init={"weight": skip_param_init}
        ),
        pos_embeddings=positions,
        layers=[block() for _ in range(shape.num_layers)],
        norm=norm(),
        lm_head=Linear.Config(
            in_features=shape.dim, out_features=shape.vocab_size, param_init={"weight": normal(init_std)}
        ),
        enable_weight_tying=True,
        autocast=autocast,
    )
