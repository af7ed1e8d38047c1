"""Hugging Face folders with FP8 weights and static scales, as other programs write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import trtla

TINY = Path(trtla.__file__).parent / "assets" / "tiny-llama"
INPUT_SCALE = 0.05
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
GROUPS = {"group_0": {"weights": SCHEME, "input_activations": SCHEME, "targets": ["Linear"]}}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": GROUPS,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
}
MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "ignore": ["lm_head"],
    "config_groups": GROUPS,
}
STATIC: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "ignored_layers": ["lm_head"],
}


def declare(folder: Path, quantization: dict[str, Any]) -> Path:
    """Write the quantisation into config.json."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def fp8_folder(
    target: Path, quantization: dict[str, Any], *, shape: tuple[int, ...] = (), cache: bool = False
) -> tuple[Path, dict[str, torch.Tensor]]:
    """Quantise the shipped model; return the folder and its weights dequantised in float32."""
    shutil.copytree(TINY, target)
    stored, numbers = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for place, (name, value) in enumerate(load_file(TINY / "model.safetensors").items()):
        stored[name], numbers[name] = value, value.float()
        if name.endswith("_proj.weight"):
            prefix, scale = name.removesuffix("weight"), value.float().abs().max() / 448
            stored[name] = (value.float() / scale).to(torch.float8_e4m3fn)
            numbers[name] = stored[name].float() * scale
            stored[f"{prefix}weight_scale"] = scale.reshape(shape)
            stored[f"{prefix}input_scale"] = torch.tensor(INPUT_SCALE + place / 1e4).reshape(shape)
            if cache and prefix.endswith(("k_proj.", "v_proj.")):
                stored[f"{prefix}{prefix[-7]}_scale"] = torch.tensor(0.02 + place / 1e4)
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    return declare(target, quantization), numbers
