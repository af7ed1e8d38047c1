"""The Llama forward over packed tokens: every fed token of every sequence in one pass.

It reads the TensorRT-LLM checkpoint's tensors (fused qkv, `mlp.fc` = gate_proj, `mlp.gate` =
up_proj). Positions, cache slots and visibility come in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import block_names
from trtla.formats.tensors import E4M3, Weight, without_blocks
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import Batch, Forwarded
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.cuda.memory import ForwardMemory
from trtla.runtime.models.forward import PackedModel
from trtla.runtime.models.kv_cache import Fp8KVCache, KVCache
from trtla.runtime.models.layers import (
    Fp8Linear,
    Fp8Pair,
    Linear,
    LinearPair,
    PlainOperations,
    fp8_products,
)
from trtla.runtime.models.rotary import Rotary
from trtla.runtime.models.tensors import LayerTensors, ModelTensors, numbers
from trtla.runtime.ranks.world import World
from trtla.runtime.sampling.device import DeviceSampler, device_sampler

_PLAIN, _FUSED = PlainOperations(), FusedOperations()


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights; `gate_up` is gate_proj and up_proj."""

    input_norm: Tensor
    qkv: Linear | Fp8Linear
    dense: Linear | Fp8Linear
    post_norm: Tensor
    gate_up: LinearPair | Fp8Pair
    down: Linear | Fp8Linear


class LlamaModel(PackedModel):
    """A dense Llama on one device.

    Args:
        weights: (checkpoint name, tensor) of the complete model; each is moved and released in
            turn.
        dtype: type of activations, and of weights that are not FP8.
        products: whether FP8 weights are multiplied in FP8, else they are dequantised here; None:
            where the device can.
        world: of a rank of tensor parallelism, whose part of a model config and weights are.
    """

    fused: bool = False
    """Whether fused kernels run in place of PyTorch's small operations; see `fused_problem`."""

    def __init__(
        self,
        config: CheckpointConfig,
        weights: Iterable[tuple[str, Weight]],
        dtype: torch.dtype,
        device: torch.device,
        products: bool | None = None,
        world: World | None = None,
    ) -> None:
        self.config, self.dtype, self._device, self._world = config, dtype, device, world
        self._products = fp8_products(config, dtype, device) if products is None else products
        plain = without_blocks(weights, dtype)
        moved = ((name, tensor.to(device)) for name, tensor in plain)  # FP8 and scales too
        tensors = ModelTensors(moved, lambda weight: numbers(weight).to(dtype), dtype)
        self._kv_scales = tensors.kv_scales(config)
        self._layers = [
            _layer(tensors.layer(index), self._products)
            for index in range(config.num_hidden_layers)
        ]
        self._embedding, head = map(numbers, tensors.ends(config))
        self._norm = tensors.vector("ln_f.weight")
        self._lm_head = Linear.of(head, shared=head is self._embedding)
        self._rotary = Rotary(config, dtype, device)
        self._heads = (config.num_attention_heads, config.num_key_value_heads)
        self._sampler: DeviceSampler | None = None

    def use_fast_path(self) -> None:
        """Run by graphs and fused kernels, and choose tokens on the device; see `cuda_check`."""
        self.fast = self.fused = True
        self._sampler = device_sampler(self._device)

    def use_plain_path(self) -> None:
        super().use_plain_path()
        self.fused = False
        self.use_plain_sampler()

    def use_plain_sampler(self) -> None:
        self._sampler = None

    @property
    def row_sampler(self) -> DeviceSampler | None:
        return self._sampler

    @property
    def group_size(self) -> int:
        return self._heads[0] // self._heads[1]

    @property
    def arithmetic(self) -> str:
        ranks = "" if self._world is None else f", on {self._world.place.size} ranks"
        return f"{self._products_in}{', FP8 K/V cache' if self.config.fp8_kv_cache else ''}{ranks}"

    @property
    def _products_in(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        if self.config.block_types:
            return f"{dtype}, {block_names(self.config)} weights dequantised at load"
        if not self.config.fp8:
            return dtype
        if self._products:
            return f"FP8 matrix products, {dtype} activations"
        return f"{dtype}, FP8 weights dequantised at load"

    @property
    def weight_bytes(self) -> int:
        return weight_bytes(self.config, self.dtype, fp8=self.config.fp8 and self._products)

    @property
    def weight_type(self) -> str:
        return "FP8" if self.config.fp8 and self._products else super().weight_type

    @property
    def cache_dtype(self) -> torch.dtype:
        return E4M3 if self.config.fp8_kv_cache else self.dtype

    def scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int] = ()) -> int:
        if self._device.type == "cpu":
            return 0
        widens = self.dtype == torch.float32 or self._lm_head.widens
        memory = ForwardMemory(self.config, self.dtype.itemsize, widens)
        sizes = step_sizes or limits.step_sizes
        if self.fast:
            return memory.scratch_bytes(limits, sizes)
        return memory.plain_scratch_bytes(limits, sizes)

    def new_cache(self, num_blocks: int) -> KVCache:
        config = self.config
        sizes = (config.num_hidden_layers, config.num_key_value_heads, config.head_size)
        if config.fp8_kv_cache:
            return Fp8KVCache(*sizes, num_blocks, self._kv_scales, self._device)
        return KVCache(*sizes, num_blocks, self.dtype, self._device)

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, cache: KVCache) -> Forwarded:
        # Triton launches on the current device, and not every caller is a `GraphRunner`, which
        # sets it itself because replays and copies go to its current stream.
        with torch.cuda.device_of(batch.tokens):  # type: ignore[no-untyped-call]
            return self._forward(batch, cache, _FUSED if self.fused else _PLAIN)

    def _forward(self, batch: Batch, cache: KVCache, small: PlainOperations) -> Forwarded:
        """A product's result is added to the states by the norm that follows, in one operation."""
        hidden: dict[int, Tensor] = {}
        epsilon = self.config.norm_epsilon
        if batch.moves is not None:
            small.move(cache, batch.moves)
        states, delta = F.embedding(batch.tokens, self._embedding), None
        rotary = self._rotary(batch.positions, batch.lengths)
        for index, layer in enumerate(self._layers):
            scale = layer.qkv.input_scale
            states, normed = small.add_norm(states, delta, layer.input_norm, epsilon, scale)
            if index - 1 in self.taps:
                hidden[index - 1] = states
            queries = small.rotate_write(layer.qkv(normed), rotary, batch.slots, cache, index)
            attended = _attend(queries, batch, cache, index)
            delta = self._sum(layer.dense(small.rounded(attended, layer.dense.input_scale)))
            scale = layer.gate_up.input_scale
            states, normed = small.add_norm(states, delta, layer.post_norm, epsilon, scale)
            # No name for gate and up: the next layer's would come while these are still there.
            scale = layer.down.input_scale
            delta = self._sum(layer.down(small.silu_mul(*layer.gate_up(normed), scale)))
        hidden[len(self._layers) - 1], normed = small.add_norm(states, delta, self._norm, epsilon)
        logits = self._lm_head.wide(normed.index_select(0, batch.rows))
        if self._world is not None:
            logits = self._world.join_columns(logits, self.config.vocab_size)
        tapped = torch.stack([hidden[tap] for tap in self.taps]).float() if self.taps else None
        return Forwarded(logits, tapped)

    def _sum(self, part: Tensor) -> Tensor:
        return part if self._world is None else self._world.sum(part)


def _attend(queries: Tensor, batch: Batch, cache: KVCache, index: int) -> Tensor:
    keys, values = cache.layer(index)
    scale = cache.scale(index)
    parts = [group.attend(queries[group.rows], keys, values, scale) for group in batch.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _layer(tensors: LayerTensors, products: bool) -> Layer:
    return Layer(
        tensors["input_layernorm.weight"],
        _linear(tensors, "attention.qkv", products),
        _linear(tensors, "attention.dense", products),
        tensors["post_layernorm.weight"],
        _pair(tensors, ("mlp.fc", "mlp.gate"), products),
        _linear(tensors, "mlp.proj", products),
    )


def _linear(tensors: LayerTensors, name: str, products: bool) -> Linear | Fp8Linear:
    if products and tensors.is_fp8(name):
        return _fp8_linear(tensors, name)
    weight, bias = tensors.take_plain(name)
    return Linear.of(numbers(weight), bias)


def _pair(tensors: LayerTensors, names: tuple[str, str], products: bool) -> LinearPair | Fp8Pair:
    if products and tensors.is_fp8(names[0]):
        first, second = (_fp8_linear(tensors, name) for name in names)
        return Fp8Pair.of(first, second)
    weights, biases = zip(*map(tensors.take_plain, names), strict=True)
    return LinearPair.of([numbers(weight) for weight in weights], biases)


def _fp8_linear(tensors: LayerTensors, name: str) -> Fp8Linear:
    weight, bias = tensors.take(name)
    assert isinstance(weight, Tensor)
    scale = tensors[f"{name}.weights_scaling_factor"]
    input_scale = tensors[f"{name}.activation_scaling_factor"]
    return Fp8Linear(weight, scale, input_scale, bias, tensors.dtype)


def weight_bytes(config: CheckpointConfig, dtype: torch.dtype, *, fp8: bool = False) -> int:
    """Bytes of a model whose weights are all held in one type."""
    hidden, head = config.hidden_size, config.head_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    others = 2 * hidden * config.num_hidden_layers + hidden + hidden * config.vocab_size
    layers = layer * config.num_hidden_layers
    return layers * (1 if fp8 else dtype.itemsize) + others * dtype.itemsize
