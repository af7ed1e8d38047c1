"""The Llama forward over packed tokens: every fed token of every sequence in one pass.

It reads the TensorRT-LLM checkpoint's tensors (fused qkv, `mlp.fc` = gate_proj, `mlp.gate` =
up_proj). Positions, cache slots and visibility come in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.config import FP8, CheckpointConfig
from trtla.formats.plan import block_names
from trtla.formats.shapes import SHARED
from trtla.formats.support import expert_numbers, plain_bytes
from trtla.formats.tensors import Weight, numpy_dtype, without_blocks
from trtla.formats.torch_tensors import E4M3, as_tensor, dequantize
from trtla.runtime.costs import Mixture
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.attention import StepGroup
from trtla.runtime.models.batch import Batch, BatchOutput
from trtla.runtime.models.cuda.memory import ForwardMemory
from trtla.runtime.models.cuda.products import plain_of
from trtla.runtime.models.cuda.steady import HEAD, SteadyChoice
from trtla.runtime.models.layers import (
    Fp8Linear,
    Fp8Pair,
    Linear,
    LinearPair,
    PlainOperations,
    Rotary,
    fp8_products,
)
from trtla.runtime.models.mlp import Choice, Experts, Mlp
from trtla.runtime.models.rotary import layer_rotaries, rotary_configs
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.models.tensor_model import PackedModel
from trtla.runtime.models.tensors import OPTIONAL_VECTORS, ModelTensors, layer_vectors
from trtla.runtime.ranks.world import World
from trtla.runtime.sampling.device import device_sampler


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights."""

    input_norm: Tensor
    qkv: Linear | Fp8Linear
    dense: Linear | Fp8Linear
    post_norm: Tensor
    mlp: Mlp | Experts
    q_norm: Tensor | None
    """The norm of each head's queries, or of as many numbers as it has; None: there is none."""
    k_norm: Tensor | None
    attention_norm: Tensor | None
    """The norm of attention's output; None: it is not normalised."""
    mlp_norm: Tensor | None
    sinks: Tensor | None
    """[heads], scores beside those of keys; None: there are none."""


class LlamaModel(PackedModel):
    """A dense Llama on one device.

    Args:
        weights: (checkpoint name, tensor) of the complete model; each is moved and released in
            turn.
        dtype: type of activations, and of weights that are not FP8.
        products: FP8 weights are multiplied in FP8, else they are dequantised here; None: if the
            device can.
        world: of a rank of tensor parallelism, whose part of a model config and weights are.
    """

    operations = PlainOperations()
    """The operations between matrix products: PyTorch's, or `FusedOperations`."""
    steady: tuple[str, ...] = ()
    """Names of the products of a fixed order; the others are cuBLAS'."""

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
        self.is_part = world is not None
        self._products = fp8_products(config, dtype, device) if products is None else products
        plain = without_blocks(weights, numpy_dtype(self.compute_type))
        moved = ((name, as_tensor(array).to(device)) for name, array in plain)  # FP8 too
        tensors = ModelTensors(moved, DeviceTensors(dtype))
        self._kv_scales = _kv_scales(tensors, config)
        self._layers = [
            _layer(tensors.layer(index), dtype if self._products else None, config)
            for index in range(config.num_hidden_layers)
        ]
        self._embedding, head = tensors.ends(config)
        self._norm = tensors.vector("ln_f.weight")
        self._lm_head = Linear.of(head, shared=head is self._embedding)
        self._rotaries = [Rotary(each, dtype, device) for each in rotary_configs(config)]
        self._rotary_of = layer_rotaries(config)
        scale = config.attention_scale
        self._query_scale = 1.0 if scale is None else scale * math.sqrt(config.head_size)
        self.windows = tuple(dict.fromkeys(config.windows))
        self._heads = (config.num_attention_heads, config.num_key_value_heads)

    def use_fast_path(self) -> None:
        """Run by graphs and fused kernels, and choose tokens on the device; see `cuda_check`."""
        from trtla.runtime.models.cuda.fused import FusedOperations

        self.fast, self.operations = True, FusedOperations()
        self._sampler = device_sampler(self._device)

    def use_plain_path(self) -> None:
        super().use_plain_path()
        self.operations = PlainOperations()
        self._change_products(lambda _, one: plain_of(one))
        self.steady = ()

    def settle_products(self, counts: Iterable[int]) -> None:
        choice = SteadyChoice(counts)
        self._change_products(choice)
        self.steady = choice.steady
        torch.cuda.empty_cache()  # graphs take memory of their own

    def _change_products(self, change: Callable[[str, Linear], Linear]) -> None:
        self._layers = [_with_products(layer, change) for layer in self._layers]
        self._lm_head = change(HEAD, self._lm_head)

    @property
    def ends(self) -> tuple[Tensor, Linear]:
        """The embedding and the product with lm_head."""
        return self._embedding, self._lm_head

    @property
    def norm(self) -> Tensor:
        """The weight of the norm behind the last layer."""
        return self._norm

    @property
    def group_size(self) -> int:
        return self._heads[0] // self._heads[1]

    @property
    def arithmetic(self) -> str:
        ranks = "" if self._world is None else f", on {self._world.place.size} ranks"
        return f"{self._products_in}{', FP8 K/V cache' if self.config.fp8_kv_cache else ''}{ranks}"

    @property
    def _products_in(self) -> str:
        dtype = self.compute_type
        if self.config.block_types:
            return f"{dtype}, {block_names(self.config)} weights dequantised at load"
        if not self.config.fp8:
            return dtype
        if self._products:
            return f"FP8 matrix products, {dtype} activations"
        return f"{dtype}, FP8 weights dequantised at load"

    @property
    def weight_bytes(self) -> int:
        fp8 = self.config.fp8 and self._products
        size, config = self.dtype.itemsize, self.config
        resting = config.num_experts - config.num_experts_per_tok
        unread = expert_numbers(config) // max(config.num_experts, 1) * resting * size
        return plain_bytes(config, size, fp8=fp8) - unread

    @property
    def mixture(self) -> Mixture | None:
        count, each = self.config.num_experts, self.config.num_experts_per_tok
        if not count:
            return None
        active = expert_numbers(self.config) * each // count * self.dtype.itemsize
        return Mixture(active / self.weight_bytes, count, each)

    @property
    def weight_type(self) -> str:
        return "FP8" if self.config.fp8 and self._products else super().weight_type

    @property
    def cache_type(self) -> str:
        return FP8 if self.config.fp8_kv_cache else super().cache_type

    def scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int] = ()) -> int:
        if self._device.type == "cpu":
            return 0
        widens = self.dtype == torch.float32 or self._lm_head.widens
        memory = ForwardMemory(self.config, self.dtype.itemsize, widens, len(self.taps))
        sizes = step_sizes or limits.step_sizes
        if self.fast:
            return memory.scratch_bytes(limits, sizes)
        return memory.plain_scratch_bytes(limits, sizes)

    def new_cache(self, num_blocks: int) -> TensorCache:
        config = self.config
        sizes = (config.num_hidden_layers, config.num_key_value_heads, config.head_size)
        return TensorCache(*sizes, num_blocks, self.dtype, self._device, self._kv_scales)

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, cache: TensorCache) -> BatchOutput:
        # Triton launches on the current device, and not every caller is a `GraphRunner`, which
        # sets it itself because replays and copies go to its current stream.
        with torch.cuda.device_of(batch.tokens):  # type: ignore[no-untyped-call]
            return self._forward(batch, cache, self.operations)

    def _forward(self, batch: Batch, cache: TensorCache, small: PlainOperations) -> BatchOutput:
        """A product's result is added to the states by the norm that follows, in one operation."""
        hidden: dict[int, Tensor] = {}
        epsilon = self.config.norm_epsilon
        if batch.moves is not None:
            small.move(cache, batch.moves)
        states, delta = F.embedding(batch.tokens, self._embedding), None
        if self.config.embedding_multiplier != 1.0:
            states = states * self.config.embedding_multiplier
        rotaries = [rotary(batch.positions, batch.lengths) for rotary in self._rotaries]
        for index, layer in enumerate(self._layers):
            scale = layer.qkv.input_scale
            states, normed = small.add_norm(states, delta, layer.input_norm, epsilon, scale)
            if index - 1 in batch.taps:
                hidden[index - 1] = states
            arguments = (rotaries[self._rotary_of[index]], batch.slots, cache, index)
            # Products have no names here, which would keep their memory during the next ones.
            queries = small.rotate_write(self._scaled(layer, layer.qkv(normed)), *arguments)
            groups = batch.seen_in(self.config.windows[index])
            attended = _attend(queries, groups, cache, index, layer.sinks)
            part = layer.dense(small.rounded(attended, layer.dense.input_scale))
            delta = self._added(part, layer.attention_norm)
            scale = layer.mlp.input_scale
            states, normed = small.add_norm(states, delta, layer.post_norm, epsilon, scale)
            part = layer.mlp(normed, partial(self._activated, small))
            delta = self._added(part, layer.mlp_norm)
        states, normed = small.add_norm(states, delta, self._norm, epsilon)
        hidden[len(self._layers) - 1] = states
        logits = self._lm_head.wide(normed.index_select(0, batch.rows))
        if self._world is not None:
            logits = self._world.join_columns(logits, self.config.vocab_size)
        if self.config.logits_scaling != 1.0:
            logits = logits / self.config.logits_scaling
        taps = [hidden[tap] for tap in batch.taps]
        tapped = torch.stack(taps) if taps else None
        return BatchOutput(logits, tapped, states)

    def _scaled(self, layer: Layer, qkv: Tensor) -> Tensor:
        """Normalise queries and keys, and scale queries beyond attention's own scale, in place."""
        queries, keys = (count * self.config.head_size for count in self._heads)
        start = 0
        for count, norm in ((queries, layer.q_norm), (keys, layer.k_norm)):
            if norm is not None:
                part = qkv[:, start : start + count].view(len(qkv), -1, len(norm))
                part.copy_(F.rms_norm(part, norm.shape, norm, self.config.norm_epsilon))
            start += count
        if self._query_scale != 1.0:
            qkv[:, :queries].mul_(self._query_scale)
        return qkv

    def _activated(
        self, small: PlainOperations, gate: Tensor, up: Tensor, scale: Tensor | None
    ) -> Tensor:
        config = self.config
        if config.swiglu_limit is not None:
            return small.clamped_mul(gate, up, config.swiglu_alpha, config.swiglu_limit)
        if config.hidden_act == "silu":
            return small.silu_mul(gate, up, scale)
        return small.gelu_mul(gate, up)

    def _added(self, part: Tensor, norm: Tensor | None) -> Tensor:
        """A half-layer's output, summed over ranks, normalised and scaled, to add to the states."""
        total = part if self._world is None else self._world.sum(part)
        if norm is not None:
            total = F.rms_norm(total, norm.shape, norm, self.config.norm_epsilon)
        scale = self.config.residual_multiplier
        return total if scale == 1.0 else total * scale


def _attend(
    queries: Tensor,
    groups: Sequence[StepGroup],
    cache: TensorCache,
    index: int,
    sinks: Tensor | None,
) -> Tensor:
    keys, values = cache.layer(index)
    scale = cache.scale(index)
    parts = [group.attend(queries[group.rows], keys, values, scale, sinks) for group in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class DeviceTensors:
    """Tensors of a type on a device; those of FP8 keep it until they are taken."""

    dtype: torch.dtype

    def placed(self, weight: Tensor) -> Tensor:
        return weight.to(self.dtype)

    def is_fp8(self, weight: Tensor) -> bool:
        return weight.dtype == E4M3

    def dequantized(self, weight: Tensor, scale: Tensor) -> Tensor:
        return dequantize(weight, scale, self.dtype)

    def equal(self, first: Tensor, second: Tensor) -> bool:
        return torch.equal(first, second)


def _kv_scales(tensors: ModelTensors[Tensor], config: CheckpointConfig) -> list[float]:
    """Every layer's scale of keys and values; none where the cache is not FP8."""
    layers = range(config.num_hidden_layers) if config.fp8_kv_cache else ()
    names = (f"layers.{layer}.attention.kv_cache_scaling_factor" for layer in layers)
    return [tensors.vector(name).item() for name in names]


def _layer(
    tensors: ModelTensors[Tensor], fp8: torch.dtype | None, config: CheckpointConfig
) -> Layer:
    """A layer; `fp8` is the type that products in FP8 have, None: FP8 weights are dequantised."""
    own = layer_vectors(config)
    return Layer(
        tensors.vector(own["input_norm"]),
        _linear(tensors, "attention.qkv", fp8),
        _linear(tensors, "attention.dense", fp8),
        tensors.vector(own["post_norm"]),
        _experts(tensors, config) if tensors.has_router else _mlp(tensors, "mlp", fp8),
        **{name: tensors.vector(own[name]) if name in own else None for name in OPTIONAL_VECTORS},
    )


def _linear(
    tensors: ModelTensors[Tensor], name: str, fp8: torch.dtype | None
) -> Linear | Fp8Linear:
    if fp8 is not None and tensors.is_fp8(name):
        return _fp8_linear(tensors, name, fp8)
    return Linear.of(*tensors.take_plain(name))


def _experts(tensors: ModelTensors[Tensor], config: CheckpointConfig) -> Experts:
    router, bias = tensors.take_router()
    names = (f"mlp.experts.{number}" for number in range(config.num_experts))
    experts = tuple(_mlp(tensors, name, None) for name in names)
    beside = (tensors.take_beside_router(name) for name in ("correction", "shared_gate"))
    vectors = [None if vector is None else vector.float() for vector in (bias, *beside)]
    choice = Choice(
        config.num_experts_per_tok,
        config.norm_topk_prob,
        config.scoring_func == "sigmoid",
        config.routed_scaling_factor,
        *vectors[:2],
    )
    shared = _mlp(tensors, SHARED, None) if config.shared_intermediate_size else None
    return Experts(router.float(), experts, choice, shared, vectors[2])


def _mlp(tensors: ModelTensors[Tensor], name: str, fp8: torch.dtype | None) -> Mlp:
    return Mlp(_gate_up(tensors, name, fp8), _linear(tensors, f"{name}.proj", fp8))


def _gate_up(
    tensors: ModelTensors[Tensor], mlp: str, fp8: torch.dtype | None
) -> LinearPair | Fp8Pair:
    names = (f"{mlp}.fc", f"{mlp}.gate")
    if fp8 is not None and tensors.is_fp8(names[0]):
        return Fp8Pair.of(*(_fp8_linear(tensors, name, fp8) for name in names))
    weights, biases = zip(*map(tensors.take_plain, names), strict=True)
    return LinearPair.of(weights, biases)


def _with_products(layer: Layer, change: Callable[[str, Linear], Linear]) -> Layer:
    """The layer with other products of its weights that are not FP8; experts keep theirs."""

    def changed(name: str, one: Linear | Fp8Linear) -> Linear | Fp8Linear:
        return change(name, one) if isinstance(one, Linear) else one

    mlp = layer.mlp
    if isinstance(mlp, Mlp):
        pair = mlp.gate_up
        if isinstance(pair, LinearPair):
            pair = LinearPair(change("gate_up", pair.stacked))
        mlp = Mlp(pair, changed("down", mlp.down))
    qkv, dense = changed("qkv", layer.qkv), changed("dense", layer.dense)
    return replace(layer, qkv=qkv, dense=dense, mlp=mlp)


def _fp8_linear(tensors: ModelTensors[Tensor], name: str, dtype: torch.dtype) -> Fp8Linear:
    weight, bias = tensors.take(name)
    scale = tensors.vector(f"{name}.weights_scaling_factor")
    input_scale = tensors.vector(f"{name}.activation_scaling_factor")
    return Fp8Linear(weight, scale, input_scale, bias, dtype)
