"""Each key of a config.json that a family fixes or has a default for, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support.families import expected_logits, folder_and_model, logits_of
from tests.support.gguf_models import write_gguf
from trtla.errors import UsageError
from trtla.formats.families import DECODERS
from trtla.formats.family import FULL, SLIDING, Family
from trtla.formats.gguf.folder import model_folder
from trtla.formats.hf_config import HFConfig, read_hf_config

_SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 160,
    "sliding_window": 12,
}
_EXPERT_SIZES = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MIXED, _ALL, _NONE = [SLIDING, FULL, FULL], [SLIDING] * 3, [FULL] * 3
_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 24}
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONGROPE = {"rope_type": "longrope", "short_factor": [1.1] * 8, "long_factor": [2.0] * 8}
_VALUES: dict[str, list[Any]] = {
    **{key: [True, False] for key in ("attention_bias", "mlp_bias", "use_bias", "qk_layernorm")},
    **{key: [True, False] for key in ("tie_word_embeddings", "use_sliding_window")},
    "layer_types": [_MIXED, _ALL, _NONE],
    "sliding_window": [8, None],
    "max_window_layers": [1],
    "sliding_window_pattern": [2],
    "max_position_embeddings": [128],
    "original_max_position_embeddings": [32],
    "rms_norm_eps": [0.1],
    "rope_theta": [77.0],
    "rope_local_base_freq": [33.0],
    "head_dim": [8, None],
    "num_key_value_heads": [4],
    "query_pre_attn_scalar": [9],
    "attention_multiplier": [0.3],
    "no_rope_layers": [[1, 0, 0]],
    "no_rope_layer_interval": [2],
    "hidden_act": ["silu", "relu"],
    "hidden_activation": ["silu"],
    "intermediate_size": [128],
    "norm_topk_prob": [True, False],
    "num_experts": [4],
    "num_local_experts": [3],
    "num_experts_per_tok": [3],
    "moe_intermediate_size": [32],
    "shared_intermediate_size": [16, 0],
    "shared_expert_intermediate_size": [48],
    "qkv_bias": [True, False],
    "use_qk_norm": [True, False],
    "scoring_func": ["softmax"],
    "decoder_sparse_step": [2],
    "moe_layer_interval": [2],
    "moe_layer_start_index": [0, 2],
    "first_k_dense_replace": [0, 2],
    "partial_rotary_factor": [0.25],
    "n_shared_experts": [2],
    "moe_num_shared_experts": [0, 2],
    **{key: [3] for key in ("n_routed_experts", "moe_num_experts")},
    "moe_k": [3],
    "swiglu_alpha": [1.3],
    "swiglu_limit": [0.2],
    "rope_parameters": [{**_YARN, "rope_theta": 1e4}, {"rope_type": "default", "rope_theta": 1e4}],
}
_TOGETHER: list[dict[str, Any]] = [
    {"use_sliding_window": True, "layer_types": _MIXED},
    {"use_sliding_window": True, "max_window_layers": 1},
    {"use_sliding_window": True, "no_rope_layers": [0, 1, 0]},
    {"sliding_window": None, "layer_types": _MIXED},
    {"sliding_window": None, "layer_types": _NONE},
    {"sliding_window": None, "use_sliding_window": False},
    {"rope_scaling": _YARN, "original_max_position_embeddings": 32},
    {"rope_scaling": _LLAMA3, "original_max_position_embeddings": 32},
    {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 96},
]
"""Keys of which one changes what another means."""
_OURS = (
    *("qk_norm_all_heads", "sandwich_norms", "offset_norms", "scales_embedding"),
    *("attention_sinks", "moe_bias", "shared_expert_gate", "score_correction"),
)
_TEXT = tuple((7 * i + i * i) % 101 for i in range(40))
_ORDER = sorted(DECODERS, key=lambda family: family.model_type != "mistral")
_FAMILIES = [pytest.param(family, id=family.model_type) for family in _ORDER]


def _cases(family: Family) -> list[dict[str, Any]]:
    """What a config.json says beside the sizes: each key of the family with another value."""
    spelled = [key for pair in family.spelled for key in pair]
    keys = {*family.fixed, *family.absent, *spelled, "layer_types", "head_dim"} - {*_OURS}
    return [{key: value} for key in sorted(keys) for value in _VALUES[key]] + _TOGETHER


def _written(folder: Path, family: Family, keys: dict[str, Any]) -> None:
    names = {"model_type": family.model_type, "architectures": [family.architecture]}
    known = family.absent if family.experts is not None else {}
    spelled = {ours: theirs for theirs, ours in family.spelled}
    count = "num_local_experts" if "num_local_experts" in family.reads else "num_experts"
    experts = {count: 4} | {k: v for k, v in _EXPERT_SIZES.items() if k in known}
    experts = {spelled.get(key, key): value for key, value in experts.items() if known}
    sizes = {**_SIZES, **experts}
    (folder / "config.json").write_text(json.dumps({**names, **sizes, **keys}))


def _theirs(folder: Path) -> torch.Tensor:
    """The logits of the model that transformers makes of a config.json, saved beside it."""
    said = (folder / "config.json").read_text()
    config = transformers.AutoConfig.from_pretrained(folder, pad_token_id=None)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if "norm" in name else 0.0, 0.3 if tensor.dim() == 1 else 0.1)
        found: torch.Tensor = model(torch.tensor([_TEXT])).logits[0, 9:]
    model.save_pretrained(folder)
    (folder / "config.json").write_text(said)
    return found


def _ours(folder: Path) -> torch.Tensor | str:
    """The logits, or the sentence of the refusal."""
    try:
        return logits_of(folder, _TEXT, 9)
    except UsageError as refused:
        return refused.message


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("family", _FAMILIES)
def test_what_a_key_says_is_done_as_in_transformers_or_refused(
    family: Family, tmp_path: Path
) -> None:
    for index, keys in enumerate(_cases(family)):
        folder = tmp_path / str(index)
        folder.mkdir()
        _written(folder, family, keys)
        try:
            expected = _theirs(folder)
        except Exception:  # it makes no model of this one, with errors of any kind
            continue
        found = _ours(folder)
        if isinstance(found, torch.Tensor):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=str(keys))
        else:
            said = found.replace("rope scaling", "rope_scaling")
            assert any(key in said for key in keys), (keys, found)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("mistral", {"mlp_bias": True}),
        ("mistral", {"use_sliding_window": False}),
        ("mistral", {"max_window_layers": 1}),
        ("qwen2", {"attention_bias": False}),
        ("qwen2", {"mlp_bias": True}),
        ("qwen3", {"qk_layernorm": False}),
        ("phi3", {"layer_types": _MIXED}),
        ("phi3", {"layer_types": _NONE}),
        ("phi3", {"mlp_bias": True}),
        ("ernie4_5", {"attention_bias": True}),
        ("gemma3_text", {"hidden_act": "silu"}),
        ("gemma3_text", {"use_sliding_window": False}),
    ],
)
def test_a_key_that_the_family_does_not_read_is_refused_by_name(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    family = next(family for family in DECODERS if family.model_type == name)
    _written(tmp_path, family, keys)
    with pytest.raises(UsageError, match=f'"{next(iter(keys))}" .* is not supported in a'):
        read_hf_config(tmp_path)
    _written(tmp_path, family, dict.fromkeys(keys))
    read_hf_config(tmp_path)  # as the hint says, without the key


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_absent_key_has_the_value_of_the_familys_class(family: Family, tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 1024, "num_hidden_layers": 30}
    defaults = transformers.AutoConfig.for_model(family.model_type, **sizes).to_dict()
    read = {*HFConfig.model_fields, *(theirs for theirs, _ in family.spelled)} & {*defaults}
    keys = {key: defaults[key] for key in sorted(read - {"architectures", "dtype", "layer_types"})}
    expected = _read(tmp_path, family, keys)
    for key in keys.keys() - {*sizes, "intermediate_size", "vocab_size"}:
        absent = {name: value for name, value in keys.items() if name != key}
        assert _read(tmp_path, family, absent) == expected, key


def _read(folder: Path, family: Family, keys: dict[str, Any]) -> Any:
    data = {"architectures": [family.architecture], **keys}
    (folder / "config.json").write_text(json.dumps(data))
    return read_hf_config(folder)


def test_the_config_of_a_gguf_file_has_the_familys_own_keys(tmp_path: Path) -> None:
    model = folder_and_model("ernie-biases")[1]
    folder = model_folder(write_gguf(model, tmp_path / "model.gguf", arch="ernie4_5"))
    assert json.loads((folder / "config.json").read_text())["use_bias"] is True
    expected = expected_logits("ernie-biases", _TEXT, 9)
    torch.testing.assert_close(logits_of(folder, _TEXT, 9), expected, rtol=1e-5, atol=1e-5)
