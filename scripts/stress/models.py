"""Small random Llamas: rotary embeddings, biases and tokenizers of every kind."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from tests.support import tokenizers
from tests.support.heads import write_head

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
KINDS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head-size-32": {"head_dim": 32, "num_hidden_layers": 1},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 48,
    },
    "llama3": {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
}
TOKENIZERS = {"bytes": tokenizers.byte_level, "fallback": tokenizers.byte_fallback}


@dataclass(frozen=True)
class ModelSpec:
    """What a model's folder is made from."""

    kind: str
    tokenizer: str
    seed: int
    noise: float = 0.0
    """Added to the weights: a draft model is the target with noise."""


def model_folder(spec: ModelSpec, root: Path) -> Path:
    """The Hugging Face folder of a model, written on first use."""
    folder = root / "-".join(str(value) for value in asdict(spec).values())
    if not folder.exists():
        disable_progress_bar()
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        tokenizer = TOKENIZERS[spec.tokenizer]()
        tokenizers.save(tokenizer, part)
        _model(spec, tokenizer.get_vocab_size()).save_pretrained(part)
        part.rename(folder)
    return folder


def head_folder(spec: ModelSpec, seed: int, root: Path) -> Path:
    """The folder of a random EAGLE-3 head for a model, written on first use."""
    folder = root / f"{model_folder(spec, root).name}-head-{seed}"
    if not folder.exists():
        config = LlamaConfig.from_pretrained(model_folder(spec, root))
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        sizes = {"hidden_size": 64, "target_hidden_size": 64, "vocab_size": config.vocab_size}
        boundaries = tuple(range(1, config.num_hidden_layers + 1))
        norms = {"fc_norm": seed == 0, "norm_output": seed == 0}
        write_head(part, "angelslim", **sizes, boundaries=boundaries, seed=seed, **norms)
        part.rename(folder)
    return folder


def _model(spec: ModelSpec, vocab_size: int) -> LlamaForCausalLM:
    keys = {**BASE, **KINDS[spec.kind], "vocab_size": vocab_size}
    if "rope_parameters" in keys:
        keys["rope_parameters"] = {"rope_theta": 10000.0, **keys["rope_parameters"]}
    model = LlamaForCausalLM(LlamaConfig(bos_token_id=1, eos_token_id=2, **keys))
    noise = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            spread = 0.3 if tensor.dim() == 1 else 0.15
            tensor.normal_(float("norm" in name), spread, generator=noise)
            tensor += spec.noise * spread * torch.randn(tensor.shape, generator=noise)
    # Several ids end a text, so that some texts do end.
    model.generation_config.eos_token_id = [2, *range(3 + spec.seed % 9, vocab_size, 97)]
    return model
