"""The T5 family: the decoder over packed tokens, every fed token of every sequence in one pass.

Raffel et al. (arXiv 1910.10683): relative position bias, no scaling of attention, RMS norm, a
feed-forward net with ReLU or a gate. transformers reads the weights, and is the encoder.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.errors import TrtlaError, UsageError
from trtla.formats.engine import EncoderDecoder
from trtla.formats.t5_config import T5Config
from trtla.formats.transformers_load import load_model
from trtla.runtime.models.attention import AttentionGroup, StepGroup
from trtla.runtime.models.batch import (
    Batch,
    all_finite,
    guarded,
    make_batch,
)
from trtla.runtime.models.forward import Forwarded
from trtla.runtime.models.layers import Linear, LinearPair
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.models.tensor_model import TensorModel
from trtla.runtime.request import Request
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sequence import Feed

Encode = Callable[[tuple[int, ...]], Tensor]
"""A prompt's ids -> the encoder's output [tokens, d_model]."""
Activation = Callable[[Tensor], Tensor]
LayerStates = tuple[Tensor, Tensor]
"""A layer's keys and values of a prompt, each [1, heads, prompt tokens, head_size]."""
PromptStates = tuple[LayerStates, ...]
"""The states of all layers."""
RelativeGroups = list[tuple[AttentionGroup, Tensor]]
"""A step's attention groups, with the distance of each of their queries from each key."""


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
    """The bias of attention scores, by head and by a key's distance backwards.

    Args:
        weight: [buckets, heads].
        max_distance: the distance whose bias all larger ones have too.
    """

    def __init__(self, weight: Tensor, max_distance: int) -> None:
        buckets = distance_buckets(len(weight), max_distance).to(weight.device)
        self._by_distance = weight[buckets].t().contiguous()
        self._most = max_distance

    def __call__(self, distances: Tensor) -> Tensor:
        """Scores [batch, heads, queries, keys] of distances [batch, queries, keys]."""
        return self._by_distance[:, distances.clamp(0, self._most)].transpose(0, 1)


def relative_groups(
    feeds: Sequence[Feed], groups: Sequence[StepGroup], device: torch.device
) -> RelativeGroups:
    """Pair the groups of `make_batch` for these feeds with their queries' distances from keys."""
    members = [[feed] for feed in feeds if feed.draft is None]
    steps = [feed for feed in feeds if feed.draft is not None]
    if steps:
        members.append(steps)
    attention_groups = cast("Sequence[AttentionGroup]", groups)  # `make_batch` makes no others
    return [
        (group, _distances(part, group).to(device))
        for part, group in zip(members, attention_groups, strict=True)
    ]


def _biased(relative: RelativeGroups, bias: RelativeBias) -> list[AttentionGroup]:
    """The groups with this bias beside their masks."""
    return [
        replace(group, bias=_masked(bias(distances), group), causal=False)
        for group, distances in relative
    ]


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
class Attention:
    """Weights of attention over the text itself, or over the prompt."""

    norm: Tensor
    query: Linear
    key_value: LinearPair
    out: Linear


@dataclass(frozen=True, slots=True)
class T5Layer:
    """One decoder layer's weights."""

    text: Attention
    bias: RelativeBias | None
    """None: that of the layer before."""
    prompt: Attention
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
    """Bytes of the weights that a step reads."""


class T5Model(TensorModel):
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
        return f"{self.compute_type}, encoder of transformers"

    @property
    def weight_bytes(self) -> int:
        return self._weights.nbytes

    def new_cache(self, num_blocks: int) -> TensorCache:
        layers = len(self._weights.layers)
        return TensorCache(layers, *self._shape, num_blocks, self.dtype, self._device)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], cache: TensorCache) -> Forwarded:
        """Write the fed tokens' keys and values, return logits [batch.rows, vocab].

        They are float32, or float64 for a float64 decoder. Prompts that are new are encoded first.
        """
        prompts = [self.prompts.of(feed.sequence.request) for feed in feeds]
        batch = make_batch(feeds, cache, 1, self.dtype)
        states = self._states(feeds, batch, prompts, cache)
        if not all_finite(states):  # as in `PackedModel.run`
            states = self._states(feeds, guarded(batch), prompts, cache)
        states = self._normalise(states.index_select(0, batch.rows), self._weights.norm)
        logits = self._weights.lm_head(states * self._weights.logit_scale)
        return Forwarded(on_host(logits.to(torch.promote_types(self.dtype, torch.float32))))

    def _states(
        self,
        feeds: Sequence[Feed],
        batch: Batch,
        prompts: Sequence[PromptStates],
        cache: TensorCache,
    ) -> Tensor:
        """The last layer's output, [tokens, d_model]."""
        counts = [feed.length for feed in feeds]
        relative = relative_groups(feeds, batch.groups, self._device)
        groups: list[AttentionGroup] = []
        states = F.embedding(batch.tokens, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            if layer.bias is not None:
                groups = _biased(relative, layer.bias)
            states = states + self._attention(index, layer.text, states, batch, groups, cache)
            normed = self._normalise(states, layer.prompt.norm)
            queries = self._heads(layer.prompt.query(normed))
            ours = [prompt[index] for prompt in prompts]
            states = states + layer.prompt.out(attend_prompts(queries, ours, counts))
            states = states + layer.mlp(self._normalise(states, layer.mlp_norm))
        return states

    def _attention(
        self,
        index: int,
        text: Attention,
        states: Tensor,
        batch: Batch,
        groups: Sequence[AttentionGroup],
        cache: TensorCache,
    ) -> Tensor:
        normed = self._normalise(states, text.norm)
        # `attend` divides by this root, which T5 does not.
        queries = self._heads(text.query(normed)) * self._shape[1] ** 0.5
        cache.write(index, batch.slots, *map(self._heads, text.key_value(normed)))
        keys, values = cache.layer(index)
        parts = [group.attend(queries[group.rows], keys, values) for group in groups]
        return text.out(torch.cat(parts))

    def _prompt_states(self, prompt: tuple[int, ...]) -> PromptStates:
        encoded, layers = self._encode(prompt), []
        for layer in self._weights.layers:
            parts = map(self._heads, layer.prompt.key_value(encoded))
            keys, values = (part.transpose(0, 1)[None].contiguous() for part in parts)
            layers.append((keys, values))
        return tuple(layers)

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(len(states), *self._shape)

    def _normalise(self, states: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in at least float32, in the weight's type."""
        wide = states.to(torch.promote_types(states.dtype, torch.float32))
        root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._epsilon)
        return (states * root).to(weight.dtype) * weight


class EncodedPrompts:
    """Keys and values of the prompts in flight."""

    def __init__(self, encode: Callable[[tuple[int, ...]], PromptStates]) -> None:
        self._encode = encode
        self._by_request: dict[int, PromptStates] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def of(self, request: Request) -> PromptStates:
        key = id(request)  # unique while the request lives, and forgotten when it ends
        states = self._by_request.get(key)
        if states is None:
            if request.encoder_ids is None:
                raise TrtlaError(
                    f"{request.label} has no encoder_ids", "give the encoder's input with it"
                )
            states = self._by_request[key] = self._encode(request.encoder_ids)
            weakref.finalize(request, self._by_request.pop, key, None).atexit = False
        return states


def attend_prompts(
    queries: Tensor, prompts: Sequence[LayerStates], counts: Sequence[int]
) -> Tensor:
    """Attention over prompts, without scaling: of [tokens, heads, head_size], feed by feed, to
    [tokens, heads * head_size].

    Args:
        prompts: a layer's keys and values for each feed.
        counts: tokens of each feed.
    """
    parts = [
        F.scaled_dot_product_attention(rows.transpose(0, 1)[None], keys, values, scale=1.0)[0]
        for rows, (keys, values) in zip(torch.split(queries, list(counts)), prompts, strict=True)
    ]
    return torch.cat(parts, dim=1).transpose(0, 1).flatten(1)


def load_t5(engine: EncoderDecoder, dtype: torch.dtype, device: torch.device) -> T5Model:
    """Load a model of the T5 family from a Hugging Face folder."""
    kind, hint = "AutoModelForSeq2SeqLM", "copy the folder again"
    theirs = load_model(kind, engine.path, dtype, hint).requires_grad_(False).to(device)
    encoder, tensors = theirs.get_encoder(), dict(theirs.state_dict())
    tensors["lm_head.weight"] = theirs.get_output_embeddings().weight
    weights = _weights(tensors, engine.t5, _scales_logits(theirs.config))

    def encode(prompt: tuple[int, ...]) -> Tensor:
        output = encoder(input_ids=torch.tensor([prompt], device=device))
        states: Tensor = output.last_hidden_state[0]
        return states

    return T5Model(weights, engine.t5, encode, dtype, device)


def _scales_logits(config: Any) -> bool:
    """Decide as transformers does: T5 by its own key (before 5.0 by the tie), UMT5 by the tie."""
    if config.model_type == "mt5":
        return False
    return bool(getattr(config, "scale_decoder_outputs", config.tie_word_embeddings))


def _activation(name: str) -> Activation:
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise UsageError(
            f"the activation {name} is not known", "check feed_forward_proj in config.json"
        )
    function: Activation = ACT2FN[name]
    return function


def _weights(tensors: Mapping[str, Tensor], config: T5Config, scales_logits: bool) -> T5Weights:
    activation = _activation(config.activation)
    layers = tuple(
        _layer(_part(tensors, f"decoder.block.{index}.layer."), config, activation)
        for index in range(config.num_decoder_layers)
    )
    head = tensors["lm_head.weight"]
    blocks = [tensor for name, tensor in tensors.items() if name.startswith("decoder.block.")]
    return T5Weights(
        layers,
        tensors["shared.weight"],
        tensors["decoder.final_layer_norm.weight"],
        Linear.of(head),
        config.d_model**-0.5 if scales_logits else 1.0,
        sum(tensor.nbytes for tensor in (*blocks, head)),
    )


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it and without `.weight`."""
    return {
        name.removeprefix(prefix).removesuffix(".weight"): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _layer(tensors: Mapping[str, Tensor], config: T5Config, activation: Activation) -> T5Layer:
    table = tensors.get("0.SelfAttention.relative_attention_bias")
    distance = config.relative_attention_max_distance
    return T5Layer(
        _attention(tensors["0.layer_norm"], _part(tensors, "0.SelfAttention.")),
        None if table is None else RelativeBias(table, distance),
        _attention(tensors["1.layer_norm"], _part(tensors, "1.EncDecAttention.")),
        tensors["2.layer_norm"],
        _feed_forward(_part(tensors, "2.DenseReluDense."), activation),
    )


def _attention(norm: Tensor, tensors: Mapping[str, Tensor]) -> Attention:
    pair = LinearPair.of((tensors["k"], tensors["v"]), (None, None))
    return Attention(norm, Linear.of(tensors["q"]), pair, Linear.of(tensors["o"]))


def _feed_forward(tensors: Mapping[str, Tensor], activation: Activation) -> FeedForward:
    """`wi` alone, or `wi_0` with the gate `wi_1`."""
    gate, down = tensors.get("wi_1"), tensors["wo"]
    return FeedForward(
        Linear.of(tensors["wi_0" if gate is not None else "wi"]),
        None if gate is None else Linear.of(gate),
        Linear.of(down),
        down.dtype,
        activation,
    )
