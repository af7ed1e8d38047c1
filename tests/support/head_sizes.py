"""Sizes of small heads, and their random tensors by the names of a `Head`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy import ndarray


@dataclass(frozen=True)
class EagleSizes:
    """An EAGLE-3 head's sizes, flags and random tensors."""

    vocab_size: int = 2048
    draft_vocab_size: int = 96
    target_hidden_size: int = 256
    hidden_size: int = 256
    intermediate_size: int = 96
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int | None = None
    boundaries: tuple[int, ...] | None = (2, 3, 4)
    """None: config.json names none, and the head has three taps."""
    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    embedding: bool = False
    """It has an embedding of its own."""
    lm_head: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    seed: int = 0

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def taps(self) -> int:
        return 3 if self.boundaries is None else len(self.boundaries)

    @cached_property
    def tensors(self) -> dict[str, ndarray]:
        """Its tensors; those of a seed and sizes are always the same."""
        random = np.random.default_rng(self.seed)
        return {name: _random(random, name, shape) for name, shape in self._shapes().items()}

    @cached_property
    def target_ids(self) -> ndarray | None:
        """The target's token of each of the draft vocabulary; None: they are the same."""
        if self.draft_vocab_size == self.vocab_size:
            return None
        random = np.random.default_rng(self.seed + 1)
        ids = random.choice(self.vocab_size, self.draft_vocab_size, replace=False)
        return np.sort(ids).astype(np.int64)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, target, size = self.hidden_size, self.target_hidden_size, self.head_size
        heads, keys = self.num_attention_heads * size, self.num_key_value_heads * size
        inner = self.intermediate_size
        norms = {f"fc_norm.{i}": (target,) for i in range(self.taps)} if self.fc_norm else {}
        joined = {"input_norm": (self.taps * target,)} if self.input_norm else {}
        vocabulary = {"lm_head": (self.draft_vocab_size, hidden)} if self.lm_head else {}
        embedding = {"embedding": (self.vocab_size, hidden)} if self.embedding else {}
        return {
            "fc": (hidden, self.taps * target),
            **norms,
            **joined,
            "embedding_norm": (hidden,),
            "hidden_norm": (hidden,),
            "q": (heads, 2 * hidden),
            "k": (keys, 2 * hidden),
            "v": (keys, 2 * hidden),
            "o": (hidden, heads),
            "post_norm": (hidden,),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
            "norm": (hidden,),
            **vocabulary,
            **embedding,
        }


@dataclass(frozen=True)
class MedusaSizes:
    """The sizes of Medusa heads, and their random tensors."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_heads: int = 3
    num_layers: int = 1
    lm_head: bool = True
    """False: as older ones, which share the target's."""
    seed: int = 0

    @cached_property
    def tensors(self) -> dict[str, ndarray]:
        """Their tensors; those of a seed and sizes are always the same."""
        random, hidden, shapes = np.random.default_rng(self.seed), self.hidden_size, {}
        for k in range(self.num_heads):
            for block in range(self.num_layers):
                shapes[f"{k}.{block}.weight"] = (hidden, hidden)
                shapes[f"{k}.{block}.bias"] = (hidden,)
            if self.lm_head:
                shapes[f"{k}.lm_head"] = (self.vocab_size, hidden)
        return {name: _random(random, name, shape) for name, shape in shapes.items()}


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> ndarray:
    numbers = random.standard_normal(shape)
    if "norm" in name:
        numbers = 1 + 0.1 * numbers
    elif name != "embedding":
        numbers /= np.sqrt(shape[-1])
    # bfloat16 and float16 hold them, so that every type of file gives back the same.
    return torch.from_numpy(numbers).bfloat16().half().float().numpy()
