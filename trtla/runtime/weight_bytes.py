"""Bytes of weights that one forward reads: layers, norms and head; of the embedding it reads rows.

Models that hold weights in other types count them themselves.
"""

from __future__ import annotations

import torch

from trtla.config import CheckpointConfig


def weight_bytes(config: CheckpointConfig, dtype: torch.dtype, *, fp8: bool = False) -> int:
    """Bytes of a model whose weights are all held in one type.

    Args:
        fp8: whether the layers' products run on FP8 weights.
    """
    hidden, head = config.hidden_size, config.head_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    rest = 2 * hidden * config.num_hidden_layers + hidden + hidden * config.vocab_size
    layers = layer * config.num_hidden_layers
    return layers * (1 if fp8 else dtype.itemsize) + rest * dtype.itemsize
