"""GGUF files of small models, written as llama.cpp's converter writes them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM

from tests.support.models import Variant, make_model
from trtla.formats.gguf.tokenizer import Vocabulary

_PAIRED = ("llama", "granite", "granitemoe", "smollm3")
"""Architectures whose q and k the converter brings into the order of pairs."""
BYTE_LEVEL = {"model": "gpt2", "pre": "gpt-2"}


def byte_vocabulary() -> list[str]:
    """The 256 letters of byte-level BPE, and what a chat needs."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    return [*letters, "<|im_start|>", "<|im_end|>"]


def write_gguf(
    model: LlamaForCausalLM,
    path: Path,
    kind: str | Callable[[str], str] = "F32",
    *,
    arch: str = "llama",
    keys: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    parts: int = 1,
) -> Path:
    """Write a model; matrices get the type `kind` where its blocks divide them.

    Args:
        kind: a type, or the type of a tensor of this name.
        keys: metadata that differs; None leaves a key out.
        tokenizer: keys of `tokenizer.ggml.`.
        tensors: more of them.
        parts: the number of files.
    """
    config, head = model.config, head_size(model)
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(_rope(config)["rope_theta"]),
        "rope.dimension_count": head,
        **(keys or {}),
    }
    splits = {"split_max_tensors": 8} if parts > 1 else {}
    writer = gguf.GGUFWriter(path, arch, **splits)
    for key, value in metadata.items():
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    for key, value in (tokenizer or {}).items():
        _add(writer, f"tokenizer.{'' if key.startswith('chat_template') else 'ggml.'}{key}", value)
    for name, tensor in {**state(model, arch), **(tensors or {})}.items():
        plain = "ffn_gate_inp" in name or not name.endswith("weight")  # routers and biases
        wanted = "F32" if isinstance(kind, str) and plain else kind
        array, own = quantized(tensor, wanted if isinstance(wanted, str) else wanted(name))
        writer.add_tensor(name, array, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def head_size(model: LlamaForCausalLM) -> int:
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rope(config: Any) -> dict[str, Any]:
    """The rotary parameters of layers that read everything."""
    found: dict[str, Any] = config.rope_parameters
    return found.get("full_attention") or found


def _add(writer: Any, key: str, value: Any) -> None:
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    add |= {bool: writer.add_bool, list: writer.add_array}
    add[type(value)](key, value)


def state(model: LlamaForCausalLM, arch: str = "llama") -> dict[str, np.ndarray]:
    """A model's tensors by llama.cpp's names, rows of q and k in its order."""
    config = model.config
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    kind = next(kind for kind, own in gguf.MODEL_ARCH_NAMES.items() if own == arch)
    kinds = (kind, gguf.MODEL_ARCH.LLAMA)
    maps = [gguf.get_tensor_name_map(kind, config.num_hidden_layers) for kind in kinds]
    found = {}
    for name, tensor in _split_experts(model.state_dict(), arch == "gpt-oss"):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        letter = name.partition("self_attn.")[2][:1]
        if letter in heads and arch in _PAIRED and "norm" not in name:
            shape = array.shape
            array = array.reshape(heads[letter], 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if arch.startswith("gemma") and "norm" in name:
            array = array + 1
        known = (names.get_name(name, try_suffixes=(".weight", ".bias")) for names in maps)
        found[next(filter(None, known))] = np.ascontiguousarray(array)
    rope = _rope(config)
    if rope["rope_type"] == "llama3":
        found["rope_freqs.weight"] = llama3_factors(rope, head_size(model))
    return found


def _split_experts(
    tensors: dict[str, torch.Tensor], alternate: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with gate and up of experts apart, by names that llama.cpp's converter knows."""
    for name, tensor in tensors.items():
        name = name.replace("block_sparse_moe.router", "block_sparse_moe.gate")
        name = name.replace("gate.moe_statics", "moe_statics")
        layer, stacked, part = name.replace("block_sparse_moe", "mlp").partition(".mlp.experts.")
        if name.endswith("sinks"):
            yield f"{name}.weight", tensor
        elif name.endswith("shared_expert_gate.weight"):
            yield name, tensor[0]
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("correction_bias", "correction.bias"), tensor.reshape(-1)
        elif name.endswith("shared_mlp.input_linear.weight"):
            for half, rows in zip(("gate", "up"), tensor.chunk(2), strict=True):
                yield (
                    name.replace("shared_mlp.input_linear", f"mlp.shared_expert.{half}_proj"),
                    rows,
                )
        elif not stacked:
            yield name, tensor
        elif part.startswith("gate_up_proj") and alternate:
            halves = tensor if part.endswith("bias") else tensor.mT
            for first, half in enumerate(("gate", "up")):
                end = "bias" if part.endswith("bias") else "weight"
                yield f"{layer}.mlp.experts.{half}_proj.{end}", halves[:, first::2]
        elif alternate:
            bias = part.endswith("bias")
            end = "bias" if bias else "weight"
            yield f"{layer}.mlp.experts.down_proj.{end}", tensor if bias else tensor.mT
        elif part == "gate_up_proj":
            for half, rows in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                yield f"{layer}.mlp.experts.{half}_proj.weight", rows
        else:
            yield f"{layer}.mlp.experts.{part}.weight", tensor


def llama3_factors(rope: dict[str, Any], head: int) -> np.ndarray:
    """Written out as the converter has it, frequency by frequency."""
    factors = []
    for pair in range(0, head, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (pair / head)
        trained, factor = rope["original_max_position_embeddings"], rope["factor"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def quantized(array: np.ndarray, kind: str) -> tuple[np.ndarray, Any]:
    """A tensor's bytes in a type, and the type; what does not fit the type stays float32.

    Types that the library cannot write get random blocks with scales that are numbers.
    """
    wanted = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[wanted]
    if array.ndim < 2 or array.shape[-1] % block:
        return array, gguf.GGMLQuantizationType.F32
    if kind == "F32":
        return array, wanted
    if kind == "F16":
        return array.astype(np.float16), wanted
    try:
        return gguf.quantize(array, wanted), wanted
    except NotImplementedError:
        row = array.shape[-1] // block * size
        return np.stack([_random(one, row) for one in array]), wanted


def _random(row: np.ndarray, size: int) -> np.ndarray:
    """Bytes that depend on the row alone, so that rows may change places."""
    seed = int.from_bytes(row[:2].tobytes(), "little")
    return np.random.default_rng(seed).integers(0, 60, size, dtype=np.uint8)


def dequantized(model: LlamaForCausalLM, kind: str) -> LlamaForCausalLM:
    """The model with the numbers that a file of this type holds."""
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 2:
                array, own = quantized(tensor.numpy(), kind)
                tensor.copy_(torch.from_numpy(gguf.dequantize(array, own).reshape(tensor.shape)))
    return model


def string(text: str) -> bytes:
    """A string as a header has it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
TIED = Variant("tied", {**SIZES, "tie_word_embeddings": True, "attention_bias": True})


def model_of(variant: Variant) -> Any:
    """Norms and biases that bfloat16 holds, as blocks come with."""
    model = make_model(variant)
    for tensor in model.parameters():
        if tensor.dim() == 1:
            tensor.data = tensor.data.bfloat16().float()
    return model


def mixed(kind: str) -> Any:
    """Types as llama.cpp mixes them: v and the embedding have others, down_proj none."""
    names = {"token_embd.weight": "Q8_0", "blk.0.attn_v.weight": "Q8_0", "blk.1.ffn_down": "F16"}
    return lambda name: names.get(name, kind)


_PIECES = ("▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "▁abc", "cc", "ccc", "cccc", "▁▁",
           "▁▁▁", "1", "2", "12", "é")  # fmt: skip
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6


def scored(seed: int = 0) -> dict[str, Any]:
    """A vocabulary as Llama 2 has it: special tokens, bytes, pieces with scores."""
    tokens = ["<unk>", "<s>", "</s>", "<tool>", *(f"<0x{n:02X}>" for n in range(256)), *_PIECES]
    types = [2, _CONTROL, _CONTROL, _USER_DEFINED, *[_BYTE] * 256, *[1] * len(_PIECES)]
    scores = [0.0] * 260 + [-float((7 * n + seed) % 19) for n in range(len(_PIECES))]
    return {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}


def vocabulary(keys: dict[str, Any]) -> Vocabulary:
    return Vocabulary(Path("m.gguf"), {f"tokenizer.ggml.{key}": v for key, v in keys.items()})
