"""The decoder of the T5 family over packed tokens: every fed token of every sequence in one pass.

Raffel et al. (arXiv 1910.10683): relative position bias, no scaling of attention, RMS norm, a
feed-forward net with ReLU or a gate. Knows nothing of files; prompts come through the encoder.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.errors import TrtlaError
from trtla.formats.t5_config import T5Config
from trtla.runtime.models.batch import AttentionGroup, Batch, Forwarded, StepGroup, make_batch
from trtla.runtime.models.forward import Model
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.layers import Linear, LinearPair
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed


def distance_buckets(num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance backwards, 0 to max_distance; those beyond share the last's.

    Half of the buckets are single distances, the rest grow logarithmically (T5, section 2.1).
    Computed in float32, like transformers: a bucket's edge must not move by a rounding.
    """
    exact = num_buckets // 2
    distances = torch.arange(max_distance + 1)
    grown = torch.log(distances.float() / exact) / math.log(max_distance / exact)
    large = exact + (grown.clamp(min=0) * (num_buckets - exact)).long()
    return torch.where(distances < exact, distances, large.clamp(max=num_buckets - 1))


class RelativeBias:
    """What is added to attention scores, by head and by how far back a key stands.

    Args:
        weight: [buckets, heads].
        max_distance: from here on all distances are alike.
    """

    def __init__(self, weight: Tensor, max_distance: int) -> None:
        buckets = distance_buckets(len(weight), max_distance).to(weight.device)
        self._by_distance = weight[buckets].t().contiguous()
        self._most = max_distance

    def __call__(self, distances: Tensor) -> Tensor:
        """Scores [batch, heads, queries, keys] of distances [batch, queries, keys]."""
        return self._by_distance[:, distances.clamp(0, self._most)].transpose(0, 1)


class RelativeGroups:
    """The attention groups of a step, and how far each of their queries stands behind each key."""

    def __init__(
        self, feeds: Sequence[Feed], groups: Sequence[StepGroup], device: torch.device
    ) -> None:
        self._groups = cast("Sequence[AttentionGroup]", groups)  # `make_batch` makes no others
        self._distances = [
            _distances(members, group).to(device)
            for members, group in zip(_members(feeds), self._groups, strict=True)
        ]

    def biased(self, bias: RelativeBias) -> list[AttentionGroup]:
        """The groups with this bias beside their masks."""
        return [
            replace(group, bias=_masked(bias(distances), group), causal=False)
            for group, distances in zip(self._groups, self._distances, strict=True)
        ]


def _members(feeds: Sequence[Feed]) -> list[list[Feed]]:
    """The feeds of each group, as `make_batch` groups them."""
    alone = [[feed] for feed in feeds if feed.draft is None]
    steps = [feed for feed in feeds if feed.draft is not None]
    return [*alone, steps] if steps else alone


def _distances(feeds: Sequence[Feed], group: AttentionGroup) -> Tensor:
    """int64 [batch, queries, keys]; negative ones and those of padding are masked anyway."""
    batch, count, length = group.shape
    queries = torch.zeros((batch, count), dtype=torch.int64)
    keys = torch.arange(length).repeat(batch, 1)
    for index, feed in enumerate(feeds):
        positions = torch.tensor(feed.positions())
        queries[index, : feed.length] = positions
        keys[index, feed.sequence.num_cached : feed.total] = positions
    return queries[:, :, None] - keys[:, None, :]


def _masked(scores: Tensor, group: AttentionGroup) -> Tensor:
    if group.causal:
        later = torch.ones(group.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(later, float("-inf"))
    return scores if group.bias is None else scores + group.bias


Encode = Callable[[tuple[int, ...]], Tensor]
"""A prompt's ids -> the encoder's output [tokens, d_model]."""
Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Two projections with an activation between them, gated by a third where `gate` is there."""

    up: Linear
    gate: Linear | None
    down: Linear
    down_dtype: torch.dtype
    """float32 beside float16 layers, as transformers keeps it: float16 overflows there."""
    activation: Activation

    def __call__(self, states: Tensor) -> Tensor:
        up = self.activation(self.up(states))
        inner = up if self.gate is None else up * self.gate(states)
        return self.down(inner.to(self.down_dtype))


@dataclass(frozen=True, slots=True)
class T5Layer:
    """One decoder layer's weights."""

    norm: Tensor
    query: Linear
    key_value: LinearPair
    out: Linear
    bias: RelativeBias | None
    """None: that of the layer before."""
    cross_norm: Tensor
    cross_query: Linear
    cross_key_value: LinearPair
    cross_out: Linear
    mlp_norm: Tensor
    mlp: FeedForward


@dataclass(frozen=True, slots=True)
class T5Weights:
    """A decoder's weights on one device."""

    layers: tuple[T5Layer, ...]
    embedding: Tensor
    norm: Tensor
    lm_head: Linear
    logit_scale: float
    """d_model ** -0.5 where the embedding is the output projection (T5 1.0), else 1."""
    nbytes: int
    """Of what a step reads."""


class T5Model(Model):
    """A decoder whose requests bring `encoder_ids`."""

    def __init__(
        self,
        weights: T5Weights,
        config: T5Config,
        encode: Encode,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._weights, self._epsilon = weights, config.layer_norm_epsilon
        self._shape = (config.num_heads, config.d_kv)
        """Heads, and their size."""
        self._encode, self._device = encode, device
        self.dtype = dtype
        self.prompts = EncodedPrompts(self._prompt_states)
        """Keys and values of the prompts in flight."""

    @property
    def arithmetic(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}, encoder of transformers"

    @property
    def weight_bytes(self) -> int:
        return self._weights.nbytes

    def new_cache(self, num_blocks: int) -> KVCache:
        layers = len(self._weights.layers)
        return KVCache(layers, *self._shape, num_blocks, self.dtype, self._device)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        """Write the fed tokens' keys and values, return logits [wanted rows, vocab].

        They are float32, or float64 for a float64 decoder. Prompts that are new are encoded first.
        """
        prompts = [self.prompts.of(feed.sequence.request) for feed in feeds]
        counts = [feed.length for feed in feeds]
        batch = make_batch(feeds, cache, 1, self.dtype)
        relative = RelativeGroups(feeds, batch.groups, self._device)
        groups: list[AttentionGroup] = []
        states = F.embedding(batch.tokens, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            if layer.bias is not None:
                groups = relative.biased(layer.bias)
            states = states + self._attention(index, layer, states, batch, groups, cache)
            ours = [prompt[index] for prompt in prompts]
            states = states + self._cross_attention(layer, states, ours, counts)
            states = states + layer.mlp(self._normalise(states, layer.mlp_norm))
        states = self._normalise(states.index_select(0, batch.rows), self._weights.norm)
        logits = self._weights.lm_head(states * self._weights.logit_scale)
        return Forwarded(logits.to(torch.promote_types(self.dtype, torch.float32)))

    def _attention(
        self,
        index: int,
        layer: T5Layer,
        states: Tensor,
        batch: Batch,
        groups: Sequence[AttentionGroup],
        cache: KVCache,
    ) -> Tensor:
        normed = self._normalise(states, layer.norm)
        # `attend` divides by this root, which T5 does not.
        queries = self._heads(layer.query(normed)) * self._shape[1] ** 0.5
        cache.write(index, batch.slots, *map(self._heads, layer.key_value(normed)))
        keys, values = cache.layer(index)
        parts = [group.attend(queries[group.rows], keys, values) for group in groups]
        return layer.out(torch.cat(parts))

    def _cross_attention(
        self,
        layer: T5Layer,
        states: Tensor,
        prompts: Sequence[LayerStates],
        counts: Sequence[int],
    ) -> Tensor:
        queries = self._heads(layer.cross_query(self._normalise(states, layer.cross_norm)))
        return layer.cross_out(attend_prompts(queries, prompts, counts))

    def _prompt_states(self, prompt: tuple[int, ...]) -> PromptStates:
        read = self._encode(prompt)
        return tuple(self._layer_states(layer, read) for layer in self._weights.layers)

    def _layer_states(self, layer: T5Layer, read: Tensor) -> LayerStates:
        keys, values = map(self._heads, layer.cross_key_value(read))
        return keys.transpose(0, 1)[None].contiguous(), values.transpose(0, 1)[None].contiguous()

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(len(states), *self._shape)

    def _normalise(self, states: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in at least float32, in the weight's type."""
        wide = states.to(torch.promote_types(states.dtype, torch.float32))
        root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._epsilon)
        return (states * root).to(weight.dtype) * weight


LayerStates = tuple[Tensor, Tensor]
"""A layer's keys and values of a prompt, each [1, heads, prompt tokens, head_size]."""
PromptStates = tuple[LayerStates, ...]
"""Those of all layers."""


class EncodedPrompts:
    """Keys and values of the prompts in flight."""

    def __init__(self, encode: Callable[[tuple[int, ...]], PromptStates]) -> None:
        self._encode = encode
        self._by_request: dict[int, PromptStates] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def of(self, request: Request) -> PromptStates:
        """Those of a request's prompt."""
        key = id(request)  # not used anew while the request lives, and forgotten when it ends
        found = self._by_request.get(key)
        if found is None:
            if request.encoder_ids is None:
                raise TrtlaError(
                    f"{request.label} has no encoder_ids", "give the encoder's input with it"
                )
            found = self._by_request[key] = self._encode(request.encoder_ids)
            weakref.finalize(request, self._by_request.pop, key, None).atexit = False
        return found


def attend_prompts(
    queries: Tensor, prompts: Sequence[LayerStates], counts: Sequence[int]
) -> Tensor:
    """Attention of packed tokens over their prompts, without scaling.

    Args:
        queries: [tokens, heads, head_size], feed by feed.
        prompts: a layer's keys and values for each feed.
        counts: tokens of each feed.

    Returns:
        [tokens, heads * head_size].
    """
    parts = [
        F.scaled_dot_product_attention(rows.transpose(0, 1)[None], keys, values, scale=1.0)[0]
        for rows, (keys, values) in zip(torch.split(queries, list(counts)), prompts, strict=True)
    ]
    return torch.cat(parts, dim=1).transpose(0, 1).flatten(1)
