"""The Llama forward over packed tokens: every fed token of every sequence in one pass.

It reads the TensorRT-LLM checkpoint's tensors (fused qkv, `mlp.fc` = gate_proj, `mlp.gate` =
up_proj) and knows nothing of requests: positions, cache slots and visibility come in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.config import CheckpointConfig
from trtla.errors import TrtlaError
from trtla.runtime.attention import attend
from trtla.runtime.batch import Batch
from trtla.runtime.kv_cache import KVCache
from trtla.runtime.rope import Rotary, rotate


class TargetModel(Protocol):
    """What the step loop needs of a model."""

    @property
    def folds(self) -> int:
        """Query heads per K/V head."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations, cache and attention bias."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Write the fed tokens' keys and values, return float logits [batch.rows, vocab]."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight [in, out] with an optional bias [out].

    Stored the other way round than in the checkpoint: on CPUs the products with the 4 to 32 tokens
    of a step then take a third to two thirds of the time.
    """

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """From a checkpoint's weight [out, in]."""
        return cls(weight.t().contiguous(), bias)

    def __call__(self, states: Tensor) -> Tensor:
        if self.bias is None:
            return states @ self.weight
        return torch.addmm(self.bias, states, self.weight)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights; `gate_up` stacks gate_proj over up_proj."""

    input_norm: Tensor
    qkv: Linear
    dense: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """A dense Llama on one device.

    Args:
        weights: (checkpoint name, tensor) of the complete model; each is moved and released in
        turn.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.dtype = config, dtype
        tensors = {
            name.removeprefix("transformer."): tensor.to(device=device, dtype=dtype)
            for name, tensor in weights
        }
        try:
            self._layers = [_layer(tensors, i) for i in range(config.num_hidden_layers)]
            self._embedding = tensors.pop("vocab_embedding.weight")
            self._norm = tensors.pop("ln_f.weight")
            self._lm_head = Linear.of(tensors.pop("lm_head.weight"))
        except KeyError as error:
            raise TrtlaError(
                f"the weights lack transformer.{error.args[0]}", "build the engine again"
            ) from None
        self._rotary = Rotary(config, dtype, device)
        self._heads = (config.num_attention_heads, config.num_key_value_heads)

    @property
    def folds(self) -> int:
        """Query heads per K/V head."""
        return self._heads[0] // self._heads[1]

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Write the fed tokens' keys and values, return float32 logits [batch.rows, vocab]."""
        states = F.embedding(batch.tokens, self._embedding)
        rotary = self._rotary(batch.positions, batch.lengths)
        for index, layer in enumerate(self._layers):
            normed = self._normalise(states, layer.input_norm)
            states = states + self._attention(index, layer, normed, rotary, batch, cache)
            normed = self._normalise(states, layer.post_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            states = states + layer.down(F.silu(gate) * up)
        states = self._normalise(states.index_select(0, batch.rows), self._norm)
        return self._lm_head(states).float()

    def _normalise(self, states: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(states, weight.shape, weight, self.config.norm_epsilon)

    def _attention(
        self,
        index: int,
        layer: Layer,
        states: Tensor,
        rotary: tuple[Tensor, Tensor],
        batch: Batch,
        cache: KVCache,
    ) -> Tensor:
        q_heads, kv_heads = self._heads
        heads = layer.qkv(states).view(states.shape[0], q_heads + 2 * kv_heads, -1)
        turned = rotate(heads[:, : q_heads + kv_heads], *rotary)
        cache.write(index, batch.slots, turned[:, q_heads:], heads[:, q_heads + kv_heads :])
        keys, values = cache.layer(index)
        parts = [
            attend(turned[group.rows, :q_heads], keys, values, group) for group in batch.groups
        ]
        return layer.dense(parts[0] if len(parts) == 1 else torch.cat(parts))


def _layer(tensors: dict[str, Tensor], index: int) -> Layer:
    prefix = f"layers.{index}."
    own = {
        name.removeprefix(prefix): tensors.pop(name)
        for name in [name for name in tensors if name.startswith(prefix)]
    }

    def linear(name: str) -> Linear:
        return Linear.of(own.pop(f"{name}.weight"), own.pop(f"{name}.bias", None))

    try:
        gate, up = linear("mlp.fc"), linear("mlp.gate")
        return Layer(
            own["input_layernorm.weight"],
            linear("attention.qkv"),
            linear("attention.dense"),
            own["post_layernorm.weight"],
            _stack(gate, up),
            linear("mlp.proj"),
        )
    except KeyError as error:
        raise KeyError(f"{prefix}{error.args[0]}") from None


def _stack(first: Linear, second: Linear) -> Linear:
    """Two projections of the same input as one."""
    weight = torch.cat((first.weight, second.weight), dim=1)
    if first.bias is None or second.bias is None:
        return Linear(weight)
    return Linear(weight, torch.cat((first.bias, second.bias)))
