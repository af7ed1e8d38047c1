"""A family of decoders: what its entry says, and what entries of several families have alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)
"""Kinds of attention that layers may have, by transformers' names."""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names of a layer's experts in Hugging Face's files; {} stands for an expert's number.

    A name without it is of one tensor of all experts. Where it is that of gate and up, both halves
    of each expert follow each other, or their outputs alternate.
    """

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    """Those of the expert that all tokens share."""
    alternate: bool = field(default=False, kw_only=True)
    """The outputs of gate and up alternate, and matrices that are not in blocks are stored as
    [inputs, outputs]."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of decoders."""

    model_type: str
    architecture: str
    """Hugging Face's names."""
    gguf: str
    """The architecture of its GGUF files."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a config.json lacks."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that always hold: a config.json that names another one, to any effect, is refused."""
    spelled: tuple[tuple[str, str], ...] = ()
    """Keys of its config.json, and Llama's name, which means nothing there."""
    reads: tuple[str, ...] = ()
    """Keys of `ARITHMETIC` that its config.json may have."""
    has_windows: bool = True
    """The keys of sliding windows have a meaning."""
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of its GGUF files, and their names in config.json."""
    gguf_absent: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that its GGUF files lack."""
    gguf_implied: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda keys: {}
    """Computes keys that its GGUF files leave to the reader, from the other keys of config.json."""
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    """Weights of a layer whose names in its GGUF files differ from Llama's."""
    gguf_pairs: bool = False
    """Numbers that rotary embedding rotates together lie side by side in its GGUF files."""
    pairs: bool = False
    """They do in Hugging Face's files."""
    fused: bool = False
    """q, k and v are one weight in its files, and gate and up another."""
    experts: ExpertNames | None = None
    """Names of the weights of experts in its files; None: its layers are dense."""
    more_layers: bool = False
    """Its files may have layers that predict further tokens, behind the last one or in `mtp`."""
    trtllm: str | None = None
    """The folder of its converter in TensorRT-LLM, whose lookahead decoding runs it."""


WINDOW = 4096  # of MistralConfig and the Qwens' configs
QWEN = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "max_window_layers": 28,
    "use_sliding_window": False,
    "sliding_window": WINDOW,
}
GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "attention.scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
ALL_WINDOWED = {"use_sliding_window": True, "max_window_layers": 0}
NO_BIASES = {"attention_bias": False, "mlp_bias": False}
