"""Folders that are FP8 already: their scales in checkpoints, logits, text, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.command import refused, trtla
from tests.support.families import logits_of
from tests.support.fp8_folders import (
    COMPRESSED,
    MODELOPT,
    SCHEME,
    STATIC,
    TINY,
    declare,
    fp8_folder,
)
from tests.support.inspected import inspected
from trtla.build.convert import convert
from trtla.errors import UsageError
from trtla.formats.hf import HFModel
from trtla.formats.transformers_load import load_model

TEXT = tuple(7 * i % 1999 + 5 for i in range(48))
ATTENTION = "model.layers.2.self_attn"


def expected_logits(numbers: dict[str, torch.Tensor], known: int) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model.load_state_dict(numbers, strict=False)
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(torch.tensor([TEXT])).logits[0, known:]
    return found


def requantised(folder: Path, numbers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """q, k and v of the reference with one scale, by TensorRT-LLM's rule."""
    stored, result = load_file(folder / "model.safetensors"), dict(numbers)
    for name in numbers:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            prefix = name.rpartition("self_attn.")[0]
            scales = [stored[f"{prefix}self_attn.{x}_proj.weight_scale"] for x in "qkv"]
            scale = torch.stack(scales).max()
            result[name] = (numbers[name] / scale).to(torch.float8_e4m3fn).float() * scale
    return result


@pytest.mark.parametrize(
    ("declared", "shape"),
    [(MODELOPT, ()), (COMPRESSED, (1,)), (STATIC, ())],
    ids=["modelopt", "compressed-tensors", "fp8"],
)
def test_logits_are_those_of_the_dequantised_weights(
    declared: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    folder, numbers = fp8_folder(tmp_path / "hf", declared, shape=shape)
    found = logits_of(folder, TEXT, 1)
    exact = expected_logits(requantised(folder, numbers), 1)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
    own = expected_logits(numbers, 1)
    assert (found - own).abs().max() < 0.05 * own.abs().max()


def test_a_checkpoint_has_the_folders_scales(tmp_path: Path) -> None:
    declared = {**MODELOPT, "kv_cache_quant_algo": "FP8"}
    folder, _ = fp8_folder(tmp_path / "hf", declared, cache=True)
    convert(folder, tmp_path / "ckpt", dtype="bfloat16", tp_size=2)
    config = json.loads((tmp_path / "ckpt/config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["quantization"]["kv_cache_quant_algo"] == "FP8"
    stored = load_file(folder / "model.safetensors")
    made = load_file(tmp_path / "ckpt/rank1.safetensors")
    prefix = "transformer.layers.2.attention"
    for ours, theirs in (("weights", "weight"), ("activation", "input")):
        largest = max(stored[f"{ATTENTION}.{x}_proj.{theirs}_scale"].item() for x in "qkv")
        assert made[f"{prefix}.qkv.{ours}_scaling_factor"].item() == largest
        own = stored[f"{ATTENTION}.o_proj.{theirs}_scale"].item()
        assert made[f"{prefix}.dense.{ours}_scaling_factor"].item() == own
    cached = max(stored[f"{ATTENTION}.{x}_proj.{x}_scale"].item() for x in "kv")
    assert made[f"{prefix}.kv_cache_scaling_factor"].item() == cached
    weight = stored[f"{ATTENTION}.o_proj.weight"].chunk(2, 1)[1]
    assert torch.equal(made[f"{prefix}.dense.weight"].view(torch.uint8), weight.view(torch.uint8))


def test_transformers_gets_the_dequantised_weights(tmp_path: Path) -> None:
    folder, numbers = fp8_folder(tmp_path / "hf", MODELOPT)
    loaded = load_model("AutoModelForCausalLM", folder, torch.float32, "hint")
    with torch.inference_mode():
        found = loaded(torch.tensor([TEXT])).logits[0, 1:]
    assert torch.equal(found, expected_logits(numbers, 1))


def test_a_folder_of_modelopt_alone_runs_as_it_is(tmp_path: Path) -> None:
    folder, _ = fp8_folder(tmp_path / "hf", COMPRESSED)
    (folder / "config.json").write_bytes((TINY / "config.json").read_bytes())
    quantization = {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": None,
        "exclude_modules": ["lm_head"],
    }
    content = {"producer": {"name": "modelopt"}, "quantization": quantization}
    (folder / "hf_quant_config.json").write_text(json.dumps(content))
    ran = trtla("run", folder, "--input-text", "The ship", "--max-output-len", "16")
    assert ran.code == 0, ran.err
    if shown := inspected(folder):
        assert (shown["quantization"], shown["quant_algo"]) == ("modelopt FP8", "FP8")
        assert not shown["problems"]
    refused(trtla("convert", folder, "-o", tmp_path / "c", "--dtype", "int4"), 2, "is quantised")
    refused(
        trtla("convert", folder, "-o", tmp_path / "c", "--use-fp8", "--kv-cache-dtype", "fp8"),
        2,
        "is FP8 already, without scales of an FP8 K/V cache",
    )


_CACHE_ALONE: list[tuple[str, dict[str, Any]]] = [
    ("hf_quant_config.json", {"quantization": {"kv_cache_quant_algo": "FP8"}}),
    ("config.json", {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}),
]


@pytest.mark.parametrize(("name", "declared"), _CACHE_ALONE)
def test_scales_of_a_cache_alone_leave_the_weights_as_they_are(
    name: str, declared: dict[str, Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "hf"))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(HFModel.open(TINY).config.num_hidden_layers):
        tensors[f"model.layers.{layer}.self_attn.k_proj.k_scale"] = torch.tensor(0.01)
    save_file(tensors, folder / "model.safetensors")
    if name == "config.json":
        declare(folder, declared)
    else:
        (folder / name).write_text(json.dumps(declared))
    command = ("--input-text", "The ship", "--max-output-len", "16", "--json")
    ran, plain = trtla("run", folder, *command), trtla("run", TINY, *command)
    assert ran.code == 0, ran.err
    found, expected = (json.loads(one.out)["results"][0]["output_ids"] for one in (ran, plain))
    assert found == expected
    if shown := inspected(folder):
        assert shown["quantization"].endswith("FP8 K/V cache")
        assert "tensors that texts do not need: *.k_scale" in str(shown["notes"])
    assert load_model("AutoModelForCausalLM", folder, torch.float32, "none") is not None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "gptq 4 bits"),
        ("quant_config.json", {"w_bit": 4, "zero_point": True}, "awq 4 bits"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "W4A16_AWQ"}}, "W4A16_AWQ"),
        ("other.json", {}, "(tensor model.layers.0.mlp.down_proj.qweight), and neither"),
    ],
)
def test_what_is_declared_beside_config_json_is_refused_by_its_name(
    name: str, content: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "hf"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.qweight"] = torch.zeros(4, 4, dtype=torch.int32)
    save_file(tensors, folder / "model.safetensors")
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(UsageError, match="the weights are quantised") as caught:
        HFModel.open(folder)
    assert said in caught.value.message
    assert "give the unquantised model" in str(caught.value.hint)
    if shown := inspected(folder):
        assert said in shown["problems"][0]


def group(**changed: Any) -> dict[str, Any]:
    return {"g": {"weights": {**SCHEME, **changed}, "input_activations": SCHEME}}


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq 4 bits"),
        ({"quant_method": "awq", "bits": 4}, "awq 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4 bits"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4"),
        ({**STATIC, "activation_scheme": "dynamic"}, "fp8, dynamic scales of activations"),
        ({**STATIC, "weight_block_size": [128, 128]}, "scales per block [128, 128]"),
        ({**COMPRESSED, "config_groups": group(strategy="channel")}, "scales per channel"),
        ({**COMPRESSED, "config_groups": group(dynamic=True)}, "dynamic scales of weights"),
        ({**COMPRESSED, "config_groups": group(num_bits=4)}, "weights of 4 bits, float"),
        ({**COMPRESSED, "format": "pack-quantized"}, "compressed-tensors pack-quantized"),
        ({**COMPRESSED, "ignore": ["re:.*o_proj"]}, "0.self_attn.o_proj is left unquantised"),
        ({**MODELOPT, "ignore": ["model.layers.1*"]}, "1.self_attn.q_proj is left unquantised"),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "K/V cache of NVFP4"),
        ({**COMPRESSED, "config_groups": group(strategy=["tensor"])}, "scales per ['tensor']"),
    ],
)
def test_another_quantisation_is_refused_by_its_name(
    declared: dict[str, Any], named: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    declare(tmp_path, declared)  # no weights: they are not looked at
    with pytest.raises(UsageError) as caught:
        HFModel.open(tmp_path)
    assert named in caught.value.message
    assert "--dtype fp8" in str(caught.value.hint)
    if shown := inspected(tmp_path):
        assert shown["quantization"].split()[0] == declared["quant_method"]
        assert named in shown["problems"][0]


def test_the_older_key_of_compressed_tensors_is_read(tmp_path: Path) -> None:
    """Its files name no method."""
    folder, numbers = fp8_folder(tmp_path / "hf", COMPRESSED)
    config = json.loads((folder / "config.json").read_text())
    declared = config.pop("quantization_config")
    del declared["quant_method"]
    (folder / "config.json").write_text(json.dumps({**config, "compression_config": declared}))
    assert HFModel.open(folder).config.fp8
    found = logits_of(folder, TEXT, 9)
    expected = expected_logits(requantised(folder, numbers), 9)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_integers_are_not_taken_for_fp8(tmp_path: Path) -> None:
    folder, _ = fp8_folder(tmp_path / "hf", MODELOPT)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].view(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=f"{name} is int8, and config.json says FP8"):
        HFModel.open(folder)
