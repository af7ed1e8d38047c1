"""What C++ reads of an engine folder; TensorRT-LLM runtime/gptJsonConfig.cpp, tllmRuntime.cpp."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._engine_blob import unpack
from .._standin import StandinUndefinedBehaviour
from .._utils import get_sm_version
from .._version import __version__
from ._cpp import check, throw

_JSON = "runtime/gptJsonConfig.cpp"
LOOKAHEAD, NONE = 8, 1


@dataclass(frozen=True)
class EngineFacts:
    pretrained: dict[str, Any]
    tp_size: int
    pp_size: int
    max_batch_size: int
    max_beam_width: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int
    """0 without speculation."""
    lookahead: bool
    attention_plugin: bool
    packed: bool
    paged: bool
    context_fmha: bool
    paged_context_fmha: bool
    context_logits: bool
    tokens_per_block: int

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def vocab_size_padded(self) -> int:
        ranks = self.world_size
        return -(-int(self.pretrained["vocab_size"]) // ranks) * ranks


def read_config(text: str) -> EngineFacts:
    """Parse an engine's config.json; missing keys are an error of the JSON library."""
    config = json.loads(text)
    pretrained, build = _get(config, "pretrained_config"), _get(config, "build_config")
    plugin, mapping = _get(build, "plugin_config"), _get(pretrained, "mapping")
    for name in ("architecture", "dtype", "num_attention_heads", "hidden_size", "vocab_size"):
        _get(pretrained, name)
    for name in ("num_hidden_layers", "num_key_value_heads", "head_size", "quantization"):
        _get(pretrained, name)
    mode, drafts = int(build.get("speculative_decoding_mode", NONE)), build.get("max_draft_len", 0)
    if mode not in (NONE, LOOKAHEAD):
        raise StandinUndefinedBehaviour(f"speculative_decoding_mode {mode} is not modelled")
    text = "max_draft_len has to be larger than 0 for Lookahead decoding model"
    check(mode != LOOKAHEAD or drafts > 0, text, _JSON)
    return EngineFacts(
        pretrained,
        _get(mapping, "tp_size"),
        _get(mapping, "pp_size"),
        _get(build, "max_batch_size"),
        _get(build, "max_beam_width"),
        _get(build, "max_input_len"),
        _get(build, "max_seq_len"),
        _get(build, "max_num_tokens"),
        drafts if mode == LOOKAHEAD else 0,
        mode == LOOKAHEAD,
        _get(plugin, "gpt_attention_plugin") is not None,
        bool(_get(plugin, "remove_input_padding")),
        _cache_type(build) == "PAGED",
        bool(_get(plugin, "context_fmha")),
        bool(_get(plugin, "use_paged_context_fmha")),
        bool(build.get("gather_context_logits", False)),
        int(plugin.get("tokens_per_block", 64)),
    )


def _cache_type(build: dict[str, Any]) -> str:
    """The kind of K/V cache; without the key it is a continuous one."""
    value = str(build.get("kv_cache_type", "CONTINUOUS")).upper()
    if value not in ("CONTINUOUS", "PAGED", "DISABLED"):
        raise ValueError(f"Invalid KV cache type: {value}")
    return value


def _get(config: dict[str, Any], key: str) -> Any:
    if key not in config:
        raise RuntimeError(f"[json.exception.out_of_range.403] key '{key}' not found")
    return config[key]


def read_text(folder: Path) -> str:
    path = folder / "config.json"
    if not path.is_file():
        raise throw(f"[TensorRT-LLM][ERROR] Assertion failed: File does not exist: {path}", _JSON)
    return path.read_text()


def read_ranks(folder: Path, count: int) -> list[dict[str, torch.Tensor]]:
    ranks = []
    for rank in range(count):
        path = folder / f"rank{rank}.engine"
        check(path.is_file(), f"Error opening engine file: {path}", "runtime/tllmRuntime.cpp")
        ranks.append(deserialize(path.read_bytes()))
    return ranks


def deserialize(blob: bytes) -> dict[str, torch.Tensor]:
    """The tensors of one rank; engines of another release or GPU architecture are refused."""
    if not torch.cuda.is_available():
        raise throw(
            "[TensorRT-LLM][ERROR] CUDA runtime error in cudaGetDevice(&device): no CUDA-capable "
            "device is detected",
            "common/cudaUtils.h",
        )
    content = unpack(blob, __version__, get_sm_version())
    if isinstance(content, str):
        text = f"[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 1: {content}\n"
        raise throw(
            f"{text}[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.",
            "runtime/tllmRuntime.cpp",
        )
    return content
