"""config.json in the spellings of transformers 4 and 5, and the defaults of absent keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtla.formats.config import CheckpointConfig
from trtla.formats.hf_config import read_hf_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def read(folder: Path, data: dict[str, Any]) -> tuple[CheckpointConfig, str | None]:
    (folder / "config.json").write_text(json.dumps(data))
    return read_hf_config(folder / "config.json")


def test_absent_keys_have_llamas_defaults(tmp_path: Path) -> None:
    config, dtype = read(tmp_path, LLAMA)
    assert dtype is None
    assert (config.num_key_value_heads, config.head_size) == (4, 16)
    assert (config.norm_epsilon, config.rotary_base) == (1e-6, 10000.0)
    assert config.rotary_scaling is None
    assert not config.tie_word_embeddings
    assert config.sliding_window is None


@pytest.mark.parametrize(
    ("keys", "expected"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 9}, 9)]
)
def test_mistrals_window(keys: dict[str, Any], expected: int | None, tmp_path: Path) -> None:
    assert read(tmp_path, {**MISTRAL, **keys})[0].sliding_window == expected
    assert read(tmp_path, {**LLAMA, **keys})[0].sliding_window is None


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
        {
            "rope_scaling": None,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        },
    ],
)
def test_rope_spellings_mean_the_same(keys: dict[str, Any], tmp_path: Path) -> None:
    config, _ = read(tmp_path, {**LLAMA, **keys})
    assert config.rotary_base == 5e5
    assert config.rotary_scaling == {"type": "linear", "rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"dtype": None}, None),
    ],
)
def test_dtype_spellings(keys: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    assert read(tmp_path, {**LLAMA, **keys})[1] == expected


def test_a_config_without_architectures_goes_by_its_model_type(tmp_path: Path) -> None:
    data = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config, _ = read(tmp_path, {**data, "model_type": "llama"})
    assert config.architecture == "LlamaForCausalLM"
