"""What the files of a family have beside a Llama's: its architecture's keys and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from trtla.formats.families import BY_GGUF
from trtla.formats.gguf.folder import model_folder
from trtla.formats.gguf.weights import gguf_name

_NO_TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


@dataclass(frozen=True)
class Kind:
    """A kind of model by the names of transformers and GGUF files."""

    name: str
    """As in Qwen3Config and Qwen3ForCausalLM."""
    gguf: str
    config: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Of its GGUF file, behind the architecture's name."""
    rotated: float = 1.0
    """The part of a head that rotary embedding turns; its file has long and short factors if it is
    not all."""


_WINDOW = 512
KINDS = {
    "llama": Kind("Llama", "llama"),
    "qwen2": Kind("Qwen2", "qwen2"),
    "qwen3": Kind("Qwen3", "qwen3"),
    "gemma3": Kind(
        "Gemma3Text",
        "gemma3",
        {"query_pre_attn_scalar": 64, "sliding_window": _WINDOW},
        {"attention.sliding_window": _WINDOW},
    ),
    "phi3": Kind(
        "Phi3",
        "phi3",
        {},
        {"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.19},
        rotated=0.75,
    ),
    "granite": Kind(
        "Granite",
        "granite",
        keys={
            "attention.scale": 0.0156,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 8.0,
        },
    ),
    "smollm3": Kind("SmolLM3", "smollm3"),
    "ernie4_5": Kind("Ernie4_5", "ernie4_5"),
}


def shapes(kind: Kind, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a model by Hugging Face's names, in the order of the layers."""
    made = getattr(transformers, f"{kind.name}Config")(**{**config, **kind.config, **_NO_TOKENS})
    model = getattr(transformers, f"{kind.name.removesuffix('Text')}ForCausalLM")
    with torch.device("meta"):
        state = model(made).state_dict()
    tied = {"lm_head.weight"} if made.tie_word_embeddings else set()
    return {name: tuple(one.shape) for name, one in state.items() if name not in tied}


def stored_name(kind: Kind, name: str) -> str:
    """A tensor's name in the file."""
    return gguf_name(name, BY_GGUF[kind.gguf])


def factors(kind: Kind, head: int) -> dict[str, tuple[int, ...]]:
    """The tables of longrope's factors."""
    if kind.rotated == 1.0:
        return {}
    count = int(head * kind.rotated) // 2
    return {f"rope_factors_{length}.weight": (count,) for length in ("short", "long")}


def differences(family: str) -> tuple[float, float]:
    """The most that float32 logits of a tiny random model differ from transformers', as a folder
    and as a GGUF file; it is a model of the tests."""
    from tests.support import families, gguf_models, real_models

    name = {"llama": "gqa", "phi3": "phi3-longrope", "ernie4_5": "ernie"}.get(family, family)
    old = family in ("llama", "qwen2")
    folder, model = (real_models if old else families).folder_and_model(name)
    text, known = tuple((7 * i + i * i) % 101 for i in range(40)), 9
    with torch.no_grad():
        expected = model(torch.tensor([text])).logits[0, known:]
    with TemporaryDirectory() as place:
        file = Path(place, "model.gguf")
        if old:
            gguf_models.write_gguf(model, file, arch=family)
        else:
            families.gguf_file(name, file)
        found = [families.logits_of(one, text, known) for one in (folder, model_folder(file))]
    folders, files = (float((one - expected).abs().max()) for one in found)
    return folders, files
