"""config.json in the spellings of transformers 4 and 5, and the defaults of absent keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtla.errors import UsageError
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
_GROUPED = {**LLAMA, "num_key_value_heads": 2}
MISTRAL = {**_GROUPED, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {**_GROUPED, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def read(folder: Path, data: dict[str, Any]) -> tuple[CheckpointConfig, str | None]:
    (folder / "config.json").write_text(json.dumps(data))
    return read_hf_config(folder)


def test_absent_keys_have_llamas_defaults(tmp_path: Path) -> None:
    config, dtype = read(tmp_path, LLAMA)
    assert dtype is None
    assert (config.num_key_value_heads, config.head_size) == (4, 16)
    assert (config.norm_epsilon, config.rotary_base) == (1e-6, 10000.0)
    assert config.rotary_scaling is None
    assert not config.tie_word_embeddings
    assert config.layer_windows == ()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({}, (4096, 4096)), ({"sliding_window": None}, ()), ({"sliding_window": 9}, (9, 9))],
)
def test_mistrals_window(
    keys: dict[str, Any], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, {**MISTRAL, **keys})[0].layer_windows == expected
    assert read(tmp_path, {**LLAMA, **keys})[0].layer_windows == ()


def test_what_qwen2_fixes_and_what_absent_keys_mean_there(tmp_path: Path) -> None:
    config, _ = read(tmp_path, {**QWEN2, "attention_bias": True, "mlp_bias": False})
    assert (config.attn_bias, config.dense_bias, config.mlp_bias) == (True, False, False)
    assert config.max_position_embeddings == 32768


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0}, ()),
        ({"sliding_window": 9, "max_window_layers": 0}, ()),
        ({"use_sliding_window": True, "sliding_window": 9}, ()),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}, ()),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, (None, 9)),
        ({"use_sliding_window": True, "max_window_layers": 1}, (None, 4096)),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, ()),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 0,
                "layer_types": ["full_attention", "full_attention"],
            },
            (),
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (9, None),
        ),
    ],
)
def test_qwen2s_window_is_that_of_layers_behind_max_window_layers(
    keys: dict[str, Any], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    from transformers import Qwen2Config

    found = read(tmp_path, {**QWEN2, **keys})[0]
    assert found.layer_windows == expected
    theirs = Qwen2Config(**{k: v for k, v in QWEN2.items() if k != "model_type"}, **keys)
    local = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert found.windows == tuple(theirs.sliding_window if one else None for one in local)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["full_attention"], "layer_types has 1 entries for 2 layers"),
        (["chunked_attention", "full_attention"], "layer_types has 'chunked_attention'"),
    ],
)
def test_layers_that_attend_in_an_unknown_way_are_refused(
    kinds: list[str], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=named):
        read(tmp_path, {**QWEN2, "layer_types": kinds})


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
