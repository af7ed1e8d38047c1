"""What a family's files may say: options that are known, and those that are refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support.families import (
    GGUF_NAMES,
    NAMES,
    VARIANTS,
    folder_and_model,
    gguf_file,
    logits_of,
    routes,
)
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.errors import UsageError
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import OPTIONS, CheckpointConfig
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.families import DECODERS
from trtla.formats.gguf.folder import model_folder
from trtla.formats.hf import HFModel
from trtla.formats.hf_config import read_hf_config
from trtla.formats.transformers_load import load_model
from trtla.llm.llm import LLM
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
_UNKNOWN: list[tuple[str, str, Any]] = [
    ("Llama", "num_local_experts", 8),
    ("Llama", "attention_multiplier", 0.1),
    ("Llama", "no_rope_layers", [1, 0]),
    ("Llama", "partial_rotary_factor", 0.5),
    ("Mistral", "vision_config", {}),
    ("Qwen2", "use_mrope", True),
    ("Qwen3", "num_experts", 128),
    ("Qwen3", "is_causal", False),
    ("Mistral", "sliding_window_pattern", 2),
    ("Qwen3", "embedding_multiplier", 12.0),
    ("Granite", "num_local_experts", 32),
    ("Gemma3", "final_logit_softcapping", 30.0),
    ("Gemma3", "use_bidirectional_attention", True),
    ("Ernie4_5", "moe_num_experts", 64),
    ("Ernie4_5_Moe", "moe_norm_min", 0.9),
]


def written(folder: Path, name: str, **keys: Any) -> Path:
    config = {"architectures": [f"{name}ForCausalLM"], **_SIZES, **keys}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "key", "value"), _UNKNOWN)
def test_a_key_that_changes_the_arithmetic_is_refused_by_name(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f'"{key}" .* not supported in a {name}ForCausalLM'):
        read_hf_config(written(tmp_path, name, **{key: value}))


@pytest.mark.parametrize("value", [None, 0])
def test_a_key_that_changes_nothing_is_not(value: Any, tmp_path: Path) -> None:
    keys = {"kv_lora_rank": value, "final_logit_softcapping": value, "logits_scaling": 1}
    for family in DECODERS:
        name = family.architecture.removesuffix("ForCausalLM")
        read_hf_config(written(tmp_path, name, **keys))


@pytest.mark.parametrize(
    "name", ["Gemma2ForCausalLM", "DeepseekV3ForCausalLM", "Gemma3ForConditionalGeneration"]
)
def test_another_family_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config = {"architectures": [name], **_SIZES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=f"architecture {name} is not supported") as raised:
        read_hf_config(tmp_path)
    assert "Gemma3ForCausalLM" in raised.value.hint


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "mrope"}, "rope scaling mrope is not supported"),
        ({"rope_type": "longrope", "long_factor": [1.0] * 8}, '"short_factor" of rope scaling'),
        (
            {"rope_type": "longrope", "long_factor": [1.0] * 7, "short_factor": [1.0] * 8},
            '"long_factor" of rope scaling longrope is not 8 numbers',
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.35}, "turns pairs, not 5 numbers"),
    ],
)
def test_rotary_scalings_that_are_not_whole_are_refused(
    scaling: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        read_hf_config(written(tmp_path, "Phi3", rope_scaling=scaling))


_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_DEFAULT: dict[str, Any] = {"rope_type": "default"}
_LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0}
_LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("Gemma3", {"sliding_window": None}, "the model has no sliding window"),
        ("Gemma3", {"rope_parameters": _LINEAR}, "rope_parameters lacks full_attention"),
        ("Gemma3", {"rope_parameters": {_LOCAL: _LINEAR}}, "has sliding_attention .* which scales"),
        ("Gemma3", {"rope_parameters": {_LOCAL: "x"}}, "has sliding_attention x"),
        ("Gemma3", {"rope_parameters": {_GLOBAL: "x"}}, "has full_attention x"),
        ("Gemma3", {"rope_parameters": {_GLOBAL: _DEFAULT}, "rope_scaling": "x"}, "rope_scaling"),
        ("Qwen3", {"rope_parameters": {_GLOBAL: _DEFAULT}}, "rope_parameters has full_attention"),
        ("Qwen3", {"rope_parameters": "x"}, '"rope_parameters" is'),
        ("Gemma3", {"rope_scaling": {_GLOBAL: _LINEAR}}, "rope_scaling has full_attention"),
        ("Qwen3", {"rope_scaling": _YARN, "rope_theta": 1}, "yarn of heads of 16 and base 1 can"),
        ("Qwen3", {"rope_scaling": _LLAMA3}, "llama3 of heads of 16 and base 10000 cannot be"),
        ("Qwen3", {"rope_scaling": {**_LINEAR, "rope_type": "dynamic"}, "head_dim": 2}, "dynamic"),
        ("Phi3", {"rope_scaling": {"rope_type": ["yarn"]}}, "rope scaling .'yarn'. is not"),
        ("Llama", {"model_type": "mistral"}, '"architectures" names Llama.*"model_type" Mistral'),
        ("Qwen3", {"layer_types": [_LOCAL, _GLOBAL]}, "the model has no sliding window"),
        ("Qwen3", {"layer_types": []}, "layer_types has 0 entries for 2 layers"),
        ("Llama", {"layer_types": [_LOCAL] * 2, "sliding_window": 9}, "has no sliding window"),
        ("Mistral", {"layer_types": "x"}, '"layer_types" is'),
        ("SmolLM3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 2 layers"),
        ("Phi3", {"rope_scaling": {**_LONGROPE, "factor": "x"}}, "\"factor\" 'x'"),
        ("Phi3", {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 1}, "longrope"),
        ("Phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, '"short_factor" of rope'),
    ],
)
def test_layers_and_scalings_that_make_no_model_are_refused(
    name: str, keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        read_hf_config(written(tmp_path, name, **keys))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("Qwen3", {"rope_theta": 1e4, "rope_scaling": {**_LINEAR, "rope_theta": 5e5}}),
        ("Qwen3", {"rope_scaling": {}, "rope_parameters": {**_LINEAR, "rope_theta": 5e5}}),
        ("Qwen3", {"rope_scaling": {**_LONGROPE, **_YARN}}),
        ("Gemma3Text", {"rope_theta": 1e5, "rope_scaling": _LINEAR, "rope_local_base_freq": 2e4}),
        ("Gemma3Text", {"rope_parameters": {_GLOBAL: {**_LINEAR, "rope_theta": 1e5}}}),
        ("Gemma3Text", {"rope_parameters": {_LOCAL: {**_DEFAULT, "rope_theta": 3e4}}}),
        ("Llama", {"offset_norms": True, "scales_embedding": True}),
        ("SmolLM3", {"use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1, 0]}),
        ("SmolLM3", {"sliding_window": 9, "no_rope_layers": [1, 0]}),
        (
            "Phi3",
            {
                "rope_scaling": {**_LONGROPE, "original_max_position_embeddings": 64},
                "original_max_position_embeddings": 32,
                "max_position_embeddings": 128,
            },
        ),
    ],
)
def test_keys_mean_what_they_mean_in_transformers(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """By the logits of a random model, for a text beyond windows and trained lengths."""
    config = {**_SIZES, "max_position_embeddings": 160, **keys}
    torch.manual_seed(0)
    kind = name.removesuffix("Text")
    theirs = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**copy.deepcopy(config), pad_token_id=None)
    ).eval()
    theirs.save_pretrained(tmp_path)
    written(tmp_path, kind, **config, torch_dtype="float32", pad_token_id=None)
    text = tuple((7 * i + i * i) % 100 for i in range(45))
    with torch.no_grad():
        expected = theirs(torch.tensor([text])).logits[0, 9:]
    torch.testing.assert_close(logits_of(tmp_path, text, 9), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3", "expert_count", 8),
        ("gemma3", "attention.sliding_window", 0),
        ("phi3", "attention.key_length", 0),
        ("qwen3", "logit_scale", 0.5),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("granite", "attention.sliding_window", 32),
    ],
)
def test_a_gguf_key_that_changes_the_arithmetic_is_refused(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    keys = {**VARIANTS[name].gguf_keys, key: value}
    file = gguf_file(name, tmp_path / "model.gguf", keys=keys)
    with pytest.raises(UsageError, match=f"{key}|mixture of 8 experts|head_dim"):
        model_folder(file)


def test_tensors_that_a_family_has_no_place_for_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, _ = folder_and_model("granite")
    tensors = load_file(folder / "model.safetensors")
    norm = tensors["model.layers.0.input_layernorm.weight"][:16].clone()
    save_file(
        {**tensors, "model.layers.0.self_attn.q_norm.weight": norm}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UsageError, match=r"holds tensor .*q_norm"):
        HFModel.open(tmp_path)


def test_nothing_is_made_for_tensorrt_llm_of_families_that_it_is_not_known_to_run(
    tmp_path: Path,
) -> None:
    folder, _ = folder_and_model("qwen3")
    said = "not known to run Qwen3ForCausalLM with lookahead decoding, which trtla's own executor"
    for dtype in ("auto", "float16", "w4a16"):
        with pytest.raises(UsageError, match=said) as raised:
            convert(folder, tmp_path / "checkpoint", dtype=dtype)
        assert "trtla run" in raised.value.hint
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_holds_the_familys_options(name: str, tmp_path: Path) -> None:
    folder, _ = folder_and_model(name)
    settings = BuildSettings(LookaheadConfig(3, 3, 3), max_seq_len=64)
    build_engine(folder, tmp_path / "engine", settings, backend="torch", dtype="float32")
    own = HFModel.open(folder).config
    stored = open_engine(tmp_path / "engine").config.pretrained_config
    for option in (*OPTIONS, "layer_windows", "rotary_scaling", "hidden_act"):
        assert getattr(own, option) == getattr(stored, option), option
    assert text_of(tmp_path / "engine") == text_of(folder)


def test_a_multiplier_of_tensorrt_llms_own_is_no_option_of_ours() -> None:
    config = HFModel.open(folder_and_model("granite")[0]).config.model_dump()
    CheckpointConfig(**config, attention_multiplier=1.0)
    with pytest.raises(ValueError, match="attention_multiplier is TensorRT-LLM's"):
        CheckpointConfig(**config, attention_multiplier=0.1)


def test_rounded_weights_of_a_family_are_for_trtlas_own_executor(tmp_path: Path) -> None:
    folder, _ = folder_and_model("phi3")
    convert(folder, tmp_path / "int8", dtype="int8")
    settings = BuildSettings(LookaheadConfig(3, 3, 3), max_seq_len=64)
    build_engine(tmp_path / "int8", tmp_path / "engine", settings, backend="torch")
    assert len(text_of(tmp_path / "engine")) == 16
    with pytest.raises(UsageError, match="not known to run Phi3ForCausalLM"):
        convert(folder, tmp_path / "int8", dtype="bfloat16", force=True)


def test_weights_of_a_family_are_weighed_by_what_its_linears_read(tmp_path: Path) -> None:
    folder, _ = folder_and_model("phi3")
    data = Calibration([[1, 2, 3, 4, 5, 6, 7, 8]])
    plain, weighed = (tmp_path / name for name in ("plain", "weighed"))
    convert(folder, plain, dtype="int8")
    convert(folder, weighed, dtype="int8", calibration=data)
    name = "model.layers.1.mlp.up_proj.weight"
    rows = [Checkpoint.open(path).read(name, 0, 96) for path in (plain, weighed)]
    assert rows[0].shape == rows[1].shape
    assert (rows[0] != rows[1]).any()


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_transformers_gets_the_model_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    file = gguf_file(name, tmp_path / "model.gguf")
    if routes(name):
        with pytest.raises(UsageError, match="is a mixture of experts"):
            load_model("AutoModelForCausalLM", model_folder(file), torch.float32, "a hint")
        return
    loaded = load_model("AutoModelForCausalLM", model_folder(file), torch.float32, "a hint")
    tokens = torch.tensor([[7 * i % 101 for i in range(30)]])
    with torch.no_grad():
        found, expected = loaded(tokens).logits, folder_and_model(name)[1](tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def text_of(path: Path) -> tuple[int, ...]:
    with LLM(path, max_seq_len=64) as llm:
        llm.end_ids = frozenset()
        (text,) = llm.generate([(5, 17, 3, 40)], SamplingParams(max_output_len=16))
    return text.output_ids
