"""Write a trained tiny Llama as a Hugging Face folder."""

from __future__ import annotations

import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_llama_data import CHAT_TEMPLATE, END, END_OF_TEXT, PAD, SPECIAL_TOKENS
from tiny_llama_model import TinyLlama, TinyLlamaConfig
from tiny_llama_recipes import RECIPES
from tokenizers import Tokenizer

_README = """\
# {name}

A Llama of {parameters:,} parameters, trained from nothing on the source of the Python standard
library. {purpose} It writes text that looks like Python; it is not a useful assistant.

## Architecture

`LlamaForCausalLM`: hidden size {hidden_size}, {num_hidden_layers} layers,
{num_attention_heads} query heads on {num_key_value_heads} key/value heads of size {head_dim},
feed-forward size {intermediate_size}, vocabulary {vocab_size} (byte-level BPE, special tokens
included), embedding tied to the head, rotary base {rope_theta:g}, context
{max_position_embeddings} tokens. Weights are stored as float16.

## Data

The `.py` files of Python {python}'s standard library, without tests, IDLE, lib2to3, encodings and
other data tables. About 5 % of the files, chosen by a hash of their path, were held out. About
8 % of the training tokens are chats made from the training files: the first line of a function's
docstring asks, the function's source answers.

Held-out files:

{held_out_list}

## Training

- command: `{command}`
- steps: {step} of {steps} with {batch_tokens:,} tokens each, {tokens:,} tokens in all
  ({epochs:.1f} passes over {epoch_tokens:,} tokens); rows of 512 tokens, in the last fifth 2,048
- wall time: {minutes:.0f} minutes on 2 CPU cores (processes: {threads}, float32) that other
  work shared; starts and steps lost to interruptions are not counted
- held-out loss: {held_out_nats:.4f} nats/token, {held_out_bits_per_byte:.4f} bits/byte
  ({held_out_tokens:,} tokens in rows of 2,048)

## Chat

`<|user|>`, `<|assistant|>`, `<|end|>` mark the turns; the chat template writes them. Generation
ends at `<|endoftext|>` or `<|end|>`. Encoding a text adds no token.

## Licence

The weights and the tokenizer are under Apache-2.0. The text they were trained on, Python's standard
library, is under the Python Software Foundation License.
"""


@dataclass(frozen=True)
class TrainingFacts:
    """What the README states about a run; losses are over all held-out text."""

    step: int
    steps: int
    tokens: int
    epoch_tokens: int
    seconds: float
    threads: int
    held_out_tokens: int
    held_out_nats: float
    held_out_bits_per_byte: float
    held_out_files: list[str]


def export(
    model: TinyLlama, tokenizer: Tokenizer, facts: TrainingFacts, folder: Path, name: str
) -> None:
    """Write the folder's files, each one complete before it replaces the one before it.

    Args:
        model: the model, in float32.
        tokenizer: its tokenizer.
        facts: what the README states.
        folder: where to write; other files in it stay.
        name: the model's in RECIPES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tiny-llama-") as temporary:
        staging, recipe = Path(temporary), RECIPES[name]
        _save_weights(model, staging / "model.safetensors", recipe.max_weight_bytes)
        tokenizer.save(str(staging / "tokenizer.json"))
        _write_json(staging / "config.json", _model_config(model.config, tokenizer))
        _write_json(staging / "generation_config.json", _generation_config(tokenizer))
        _write_json(staging / "tokenizer_config.json", _tokenizer_config(model.config))
        _write_json(staging / "special_tokens_map.json", _special_tokens())
        (staging / "README.md").write_text(_readme(model, facts, name), encoding="utf-8")
        for path in sorted(staging.iterdir()):
            path.chmod(0o644)  # safetensors writes files that their owner alone can read
            path.replace(folder / path.name)


def _save_weights(model: TinyLlama, path: Path, limit: int) -> None:
    tensors = {name: value.to(torch.float16) for name, value in model.state_dict().items()}
    save_file(tensors, str(path), metadata={"format": "pt"})
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"weights take {size} bytes, more than {limit}")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _model_config(config: TinyLlamaConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(config),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "eos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "use_cache": True,
    }


def _generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    ends = [tokenizer.token_to_id(token) for token in (END_OF_TEXT, END)]
    return {
        "bos_token_id": ends[0],
        "eos_token_id": ends,
        "pad_token_id": tokenizer.token_to_id(PAD),
    }


def _special_tokens() -> dict[str, Any]:
    extra = [token for token in SPECIAL_TOKENS if token not in (END_OF_TEXT, PAD)]
    return {
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "additional_special_tokens": extra,
    }


def _tokenizer_config(config: TinyLlamaConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **_special_tokens(),
        "add_bos_token": False,
        "add_eos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
    }


def _readme(model: TinyLlama, facts: TrainingFacts, name: str) -> str:
    recipe = RECIPES[name]
    flag = "" if recipe.tokenizer_of is None else f" --model {name} --threads {facts.threads}"
    return _README.format(
        name=name,
        purpose=recipe.purpose,
        command=f"python scripts/train_tiny_llama.py{flag}",
        batch_tokens=recipe.batch_tokens,
        **asdict(model.config),
        **asdict(facts),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        python=platform.python_version(),
        epochs=facts.tokens / facts.epoch_tokens,
        minutes=facts.seconds / 60,
        held_out_list="\n".join(f"- `{path}`" for path in facts.held_out_files),
    )
