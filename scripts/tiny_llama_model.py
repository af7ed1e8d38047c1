"""A small Llama in plain torch, written for training speed on a CPU.

Parameter names are those of Hugging Face's LlamaForCausalLM, so the state dict is the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TinyLlamaConfig:
    """The shape of the model; the weights take just under 8,000,000 bytes in float16."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., size]."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, config: TinyLlamaConfig) -> None:
        super().__init__()
        self.sizes = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        self.head_dim, hidden = config.head_dim, config.hidden_size
        self.q_proj = nn.Linear(hidden, self.sizes[0] * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.sizes[1] * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.sizes[2] * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.sizes[0] * self.head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend causally over x [rows, length, hidden]; cos and sin are [length, head_dim]."""
        rows, length, _ = x.shape
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        qkv = F.linear(x, weight).view(rows, length, -1, self.head_dim).transpose(1, 2)
        q, k, v = torch.split(qkv, self.sizes, dim=1)
        groups = self.sizes[0] // self.sizes[1]
        k = _rotate(k, cos, sin).repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(_rotate(q, cos, sin), k, v, is_causal=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))
        return mixed


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: TinyLlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., hidden] to the same shape."""
        mapped: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mapped


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: TinyLlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map x [rows, length, hidden] to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        mapped: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + mapped


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: TinyLlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class TinyLlama(nn.Module):
    """The language model; the head is the transposed embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TinyLlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        half = torch.arange(0, config.head_dim, 2) / config.head_dim
        positions = torch.arange(config.max_position_embeddings)
        angles = torch.outer(positions.float(), config.rope_theta**-half).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._init_weights()

    def _init_weights(self) -> None:
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                # Small residual branches at the start keep the first steps stable.
                scale = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats, of targets given tokens.

        Args:
            tokens: int64 [rows, length].
            targets: int64 [rows, length], the token after each position.
        """
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
