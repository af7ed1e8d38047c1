"""From a Hugging Face folder to a `T5Model`: transformers reads the weights, and is the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trtla.errors import UsageError
from trtla.formats.engine import EncoderDecoder
from trtla.formats.hf import load_model
from trtla.formats.t5_config import T5Config
from trtla.runtime.models.layers import Linear, LinearPair
from trtla.runtime.models.t5.model import (
    Activation,
    Encode,
    FeedForward,
    RelativeBias,
    T5Layer,
    T5Model,
    T5Weights,
)


def load_t5(engine: EncoderDecoder, dtype: torch.dtype, device: torch.device) -> T5Model:
    """Load a model of the T5 family."""
    kind, hint = "AutoModelForSeq2SeqLM", "copy the folder again"
    theirs = load_model(kind, engine.path, dtype, hint).requires_grad_(False).to(device)
    tensors = dict(theirs.state_dict())
    tensors["lm_head.weight"] = theirs.get_output_embeddings().weight
    weights = _weights(tensors, engine.t5, _scales_logits(theirs.config))
    return T5Model(weights, engine.t5, _encode(theirs.get_encoder(), device), dtype, device)


def _scales_logits(config: Any) -> bool:
    """What transformers does: T5 by a key of its own (by the tie before 5.0), UMT5 by the tie."""
    if config.model_type == "mt5":
        return False
    return bool(getattr(config, "scale_decoder_outputs", config.tie_word_embeddings))


def _activation(name: str) -> Activation:
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise UsageError(
            f"the activation {name} is not known", "check feed_forward_proj in config.json"
        )
    found: Activation = ACT2FN[name]
    return found


def _encode(encoder: Any, device: torch.device) -> Encode:
    def encode(prompt: tuple[int, ...]) -> Tensor:
        read: Tensor = encoder(input_ids=torch.tensor([prompt], device=device)).last_hidden_state
        return read[0]

    return encode


def _weights(tensors: Mapping[str, Tensor], config: T5Config, scales_logits: bool) -> T5Weights:
    activation = _activation(config.activation)
    layers = tuple(
        _layer(_part(tensors, f"decoder.block.{index}.layer."), config, activation)
        for index in range(config.num_decoder_layers)
    )
    head = tensors["lm_head.weight"]
    read = [tensor for name, tensor in tensors.items() if name.startswith("decoder.block.")]
    return T5Weights(
        layers,
        tensors["shared.weight"],
        tensors["decoder.final_layer_norm.weight"],
        Linear.of(head),
        config.d_model**-0.5 if scales_logits else 1.0,
        sum(tensor.nbytes for tensor in (*read, head)),
    )


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it and without `.weight`."""
    return {
        name.removeprefix(prefix).removesuffix(".weight"): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _layer(tensors: Mapping[str, Tensor], config: T5Config, activation: Activation) -> T5Layer:
    own, cross, mlp = "0.SelfAttention", "1.EncDecAttention", "2.DenseReluDense"
    table = tensors.get(f"{own}.relative_attention_bias")
    distance = config.relative_attention_max_distance
    return T5Layer(
        tensors["0.layer_norm"],
        Linear.of(tensors[f"{own}.q"]),
        _pair(tensors, own),
        Linear.of(tensors[f"{own}.o"]),
        None if table is None else RelativeBias(table, distance),
        tensors["1.layer_norm"],
        Linear.of(tensors[f"{cross}.q"]),
        _pair(tensors, cross),
        Linear.of(tensors[f"{cross}.o"]),
        tensors["2.layer_norm"],
        _feed_forward(_part(tensors, f"{mlp}."), activation),
    )


def _pair(tensors: Mapping[str, Tensor], name: str) -> LinearPair:
    return LinearPair.of((tensors[f"{name}.k"], tensors[f"{name}.v"]), (None, None))


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
