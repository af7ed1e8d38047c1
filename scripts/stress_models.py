"""Small random Llamas for stress.py: rotary embeddings, biases and tokenizers of every kind."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
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
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}
TOKENIZERS = ("bytes", "fallback")
_SPECIAL = ("<unk>", "<s>", "</s>")
_WORDS = ("▁", "▁a", "▁the", "a", "b", "c", "e", "t", "th", "he", "ab", "▁ab", "abc", "日", "本",
          "日本", "é", "end", ".", ",", "..", "▁end", ")", "(a")  # fmt: skip
_TEXT = """def read(self, path):
    with open(path) as file:
        return [line.strip() for line in file if line]

The other end, then: naïve café, 日本の本, 🦙🦙. And there it ends, the end."""


@dataclass(frozen=True)
class ModelSpec:
    """What a model's folder is made from."""

    kind: str
    tokenizer: str
    seed: int
    noise: float = 0.0
    """Added to the weights: a draft model is the target with noise."""


def model_folder(spec: ModelSpec, root: Path) -> Path:
    """The Hugging Face folder of a model, made when it is first asked for."""
    folder = root / "-".join(str(value) for value in asdict(spec).values())
    if not folder.exists():
        disable_progress_bar()
        being_made = folder.with_suffix(".part")
        shutil.rmtree(being_made, ignore_errors=True)
        being_made.mkdir(parents=True)
        _model(spec, _save_tokenizer(spec.tokenizer, being_made)).save_pretrained(being_made)
        being_made.rename(folder)
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


def _save_tokenizer(kind: str, folder: Path) -> int:
    tokenizer = _byte_level() if kind == "bytes" else _byte_fallback()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    keys = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(keys), encoding="utf-8")
    return int(tokenizer.get_vocab_size())


def _byte_level() -> Tokenizer:
    """As GPT-2 and Llama 3: tokens are any bytes, of several characters or of parts of one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 3, trainer)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: what no token spells, newline among it, is made of byte tokens."""
    names = (*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS)
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    return tokenizer
