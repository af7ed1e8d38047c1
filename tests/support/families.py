"""Tiny random models of every family of decoders, as folders and GGUF files, with transformers' own
beside them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.compiled import sequences
from tests.support.gguf_models import write_gguf
from tests.support.models import SIZES
from trtla.formats.engine import engine_from_hugging_face
from trtla.formats.engine_limits import BuildSettings
from trtla.runtime.device import CPU
from trtla.runtime.draft import Draft
from trtla.runtime.models.load import load_engine
from trtla.runtime.sequence import Feed

SHARPER = 2.0  # the random model's choices, so that texts loop and drafts are accepted
BASE: dict[str, Any] = {**SIZES, "max_position_embeddings": 160, "pad_token_id": None}


@dataclass(frozen=True)
class Variant:
    """One model: its family's class in transformers, and what differs from BASE."""

    kind: str
    """As in Qwen3Config and Qwen3ForCausalLM."""
    gguf: str
    """Its architecture in GGUF files; empty: the model cannot be one."""
    keys: dict[str, Any] = field(default_factory=dict)
    gguf_keys: dict[str, Any] = field(default_factory=dict)
    """Of its GGUF file, behind the architecture's name."""


_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
GEMMA = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 12,
    "layer_types": [_LOCAL, _LOCAL, _GLOBAL, _LOCAL],
}
VARIANTS = {
    "qwen3": Variant("Qwen3", "qwen3", {"head_dim": 32}),
    "granite": Variant(
        "Granite",
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
        {
            "embedding_scale": 3.0,
            "attention.scale": 0.2,
            "residual_scale": 0.4,
            "logit_scale": 2.5,
        },
    ),
    "smollm3": Variant("SmolLM3", "smollm3", {"num_hidden_layers": 5}),
    "phi3": Variant(
        "Phi3",
        "phi3",
        {"partial_rotary_factor": 0.75, "tie_word_embeddings": True},
        {"rope.dimension_count": 12},
    ),
    "gemma3": Variant(
        "Gemma3Text",
        "gemma3",
        GEMMA,
        {
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": [True, True, False, True],
        },
    ),
    "ernie": Variant("Ernie4_5", "ernie4_5", {"head_dim": 32}),
    "qwen3-moe": Variant(
        "Qwen3Moe",
        "qwen3moe",
        {
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
        {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32},
    ),
    "gpt-oss": Variant(
        "GptOss",
        "gpt-oss",
        {
            "num_hidden_layers": 3,
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
            "sliding_window": 12,
        },
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "attention.sliding_window": 12,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
    ),
}
LONGROPE = Variant(
    "Phi3",
    "phi3",
    {
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 96,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.3, 1.6],
            "long_factor": [1.5, 2.0, 3.0, 4.5],
        },
    },
    {
        "rope.dimension_count": 8,
        "rope.scaling.original_context_length": 96,
        "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(160 / 96) / np.log(96))),
    },
)
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 40,
}
OTHERS = {
    "qwen3-moe-dense": Variant(
        "Qwen3Moe",
        "",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "mixtral": Variant(
        "Mixtral",
        "llama",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "granite-moe": Variant(
        "GraniteMoe",
        "granitemoe",
        {
            "num_local_experts": 40,
            "num_experts_per_tok": 8,
            "intermediate_size": 32,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
        {
            "expert_count": 40,
            "expert_used_count": 8,
            "embedding_scale": 3.0,
            "attention.scale": 0.2,
            "residual_scale": 0.4,
            "logit_scale": 2.5,
        },
    ),
    "olmoe": Variant(
        "Olmoe",
        "olmoe",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32},
        {"expert_count": 8, "expert_used_count": 3},
    ),
    "qwen2-moe": Variant(
        "Qwen2Moe",
        "qwen2moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 160,
        },
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 160,
        },
    ),
    "ernie-moe": Variant(
        "Ernie4_5_Moe",
        "ernie4_5-moe",
        {
            "num_hidden_layers": 3,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
        },
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 64,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
        },
    ),
    "glm4-moe": Variant(
        "Glm4Moe",
        "glm4moe",
        {
            "num_hidden_layers": 3,
            "head_dim": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.8,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.8,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 16,
        },
    ),
    "granite-shared": Variant(
        "GraniteMoeShared",
        "granitemoe",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
            "shared_intermediate_size": 64,
            "residual_multiplier": 0.4,
        },
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_feed_forward_length": 64,
            "residual_scale": 0.4,
            "attention.scale": 1.0,
            "logit_scale": 1.0,
        },
    ),
    "gpt-oss-limited": Variant(
        "GptOss",
        "",
        {
            "head_dim": 16,
            "num_key_value_heads": 1,
            "num_local_experts": 4,
            "num_experts_per_tok": 4,
            "intermediate_size": 64,
            "sliding_window": 16,
            "layer_types": [_GLOBAL, _LOCAL],
            "swiglu_limit": 0.4,
            "swiglu_alpha": 1.3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen3-tied": Variant(
        "Qwen3", "qwen3", {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
    "qwen3-biases": Variant("Qwen3", "qwen3", {"head_dim": 32, "attention_bias": True}),
    "gemma3-wide": Variant(
        "Gemma3Text",
        "gemma3",
        {
            **GEMMA,
            "num_hidden_layers": 2,
            "layer_types": [_LOCAL, _GLOBAL],
            "hidden_size": 256,
            "intermediate_size": 256,
        },
        {
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": [True, False],
        },
    ),
    "gemma3-seven": Variant(
        "Gemma3Text",
        "gemma3",
        {"num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16},
        {"attention.sliding_window": 16},
    ),
    "gemma3-scaled": Variant(
        "Gemma3Text",
        "",
        {
            **GEMMA,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                _GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                _LOCAL: {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ),
    "ministral": Variant(
        "Ministral",
        "",
        {
            "head_dim": 16,
            "sliding_window": 12,
            "layer_types": [_LOCAL, _GLOBAL],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "phi3-whole": Variant("Phi3", "", {"num_key_value_heads": 4}),
    "phi3-longrope": LONGROPE,
    "ernie-biases": Variant("Ernie4_5", "", {"head_dim": 16, "use_bias": True}),
    "granite-defaults": Variant("Granite", "", {"tie_word_embeddings": True}),
    "granite-biases": Variant("Granite", "", {"attention_bias": True, "mlp_bias": True}),
    "smollm3-chosen": Variant(
        "SmolLM3", "", {"no_rope_layers": [0, 1], "tie_word_embeddings": False}
    ),
    "smollm3-all": Variant("SmolLM3", "", {"no_rope_layers": [1, 1], "attention_bias": True}),
    "qwen3-yarn": Variant(
        "Qwen3",
        "qwen3",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "rope_theta": 1e6,
            },
        },
        _YARN,
    ),
    "granite-yarn": Variant(
        "Granite",
        "granite",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "attention_factor": 0.8,
                "beta_fast": 20,
                "beta_slow": 2,
                "rope_theta": 1e4,
            },
        },
        {
            **_YARN,
            "rope.scaling.yarn_attn_factor": 0.8,
            "rope.scaling.yarn_beta_fast": 20.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "attention.scale": 1.0,
            "logit_scale": 1.0,  # which llama.cpp asks for
        },
    ),
    "smollm3-window": Variant(
        "SmolLM3", "", {"num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 12}
    ),
}
"""More of them, for the deep tests."""


def _parameters(names: list[str]) -> list[Any]:
    others = (pytest.param(name, marks=pytest.mark.deep) for name in names if name in OTHERS)
    return [*VARIANTS, *others]


NAMES = _parameters([*OTHERS])
"""All as parameters of a test."""
GGUF_NAMES = _parameters([name for name, variant in OTHERS.items() if variant.gguf])


def routes(name: str) -> bool:
    """True for mixtures of experts."""
    return any("experts" in key for key in (VARIANTS | OTHERS)[name].keys)


def make_model(variant: Variant, seed: int = 0) -> Any:
    """A float32 model whose norms are random too, so that a mistake in them shows."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{variant.kind}Config")(**{**BASE, **variant.keys})
    config._attn_implementation = "eager"
    kind = variant.kind.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    mean = 0.0 if kind.startswith("Gemma") else 1.0  # there norms are stored less 1
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(mean if "norm" in name else 0.0, 0.3 if tensor.dim() == 1 else 0.1)
        for name, tensor in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                tensor.normal_(0.0, 0.3)
        model.model.embed_tokens.weight.mul_(SHARPER)
    return model.eval()


@functools.cache
def folder_and_model(name: str) -> tuple[Path, Any]:
    """A variant's folder, and the model."""
    model = make_model((VARIANTS | OTHERS)[name])
    folder = Path(tempfile.mkdtemp()) / "model"
    model.save_pretrained(folder)
    return folder, model


def gguf_file(name: str, path: Path, kind: str | Callable[[str], str] = "F32", **more: Any) -> Path:
    """A variant's GGUF file, as llama.cpp's converter writes it."""
    variant, model = (VARIANTS | OTHERS)[name], folder_and_model(name)[1]
    tensors, rope = {}, variant.keys.get("rope_parameters", {})
    for length in ("short", "long") if "long_factor" in rope else ():
        tensors[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"], np.float32)
    own = {"arch": variant.gguf, "keys": variant.gguf_keys, "tensors": tensors}
    return write_gguf(model, path, kind, **{**own, **more})


def logits_of(
    folder: Path, text: tuple[int, ...], known: int, longest: int = 96, dtype: str = "float32"
) -> torch.Tensor:
    """Logits behind token `known` of a text and all tokens after it, in float32.

    Args:
        known: tokens that are fed as a prompt; the others are drafted.
        longest: tokens of the longest text that the model is opened for.
        dtype: "auto" leaves weights in their blocks.
    """
    engine = engine_from_hugging_face(folder, BuildSettings(max_seq_len=longest), dtype)
    model = load_engine(engine, "float32", CPU)
    cache = model.new_cache(16)
    (sequence,) = sequences(cache, [text[:known]], room=len(text))
    model.forward([Feed.prompt(sequence, known, True)], cache)
    sequence.num_cached, sequence.output_ids[:] = known, [text[known]]
    draft = Draft(text[known + 1 :], tuple(range(len(text) - known - 1)))
    return torch.as_tensor(model.forward([Feed.step(sequence, draft)], cache).logits).clone()


def expected_logits(name: str, text: tuple[int, ...], known: int) -> torch.Tensor:
    """The same of transformers."""
    with torch.no_grad():
        found: torch.Tensor = folder_and_model(name)[1](torch.tensor([text])).logits[0, known:]
    return found
