"""FP8 checkpoints that are broken, and models that have no FP8 form: each is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.fp8_models import to_fp8
from tests.support.inspected import inspected
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Fp8Source
from trtla.errors import TrtlaError, UsageError
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.hf import HFModel

Change = Callable[[dict[str, torch.Tensor]], object]
SCALE = "transformer.layers.1.mlp.fc.weights_scaling_factor"
WEIGHT = "transformer.layers.1.mlp.fc.weight"
BROKEN: list[tuple[str, Change, str]] = [
    ("zero", lambda t: t[SCALE].zero_(), f"tensor {SCALE} is 0.0, a scale is above 0"),
    ("nan", lambda t: t[SCALE].fill_(math.nan), f"tensor {SCALE} is nan"),
    ("other", lambda t: t[SCALE].mul_(2), "on other ranks"),
    ("none", lambda t: t.pop(SCALE), f"lacks tensor {SCALE}"),
    ("half", lambda t: t.update({WEIGHT: t[WEIGHT].half()}), f"{WEIGHT} is float16, trtla reads"),
    ("shape", lambda t: t.update({SCALE: torch.ones(2)}), "asks for [1]"),
    (
        "head",
        lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}),
        "lm_head.weight is float8_e4m3fn",
    ),
]


@pytest.mark.parametrize(("change", "named"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_checkpoint_is_refused(
    change: Change, named: str, biased_hf: Path, biased_fp8_split: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(biased_fp8_split, tmp_path / "ckpt"))
    tensors = load_file(folder / "rank3.safetensors")
    change(tensors)
    save_file(tensors, folder / "rank3.safetensors")
    with pytest.raises(UsageError) as caught:
        Checkpoint.open(folder)
    assert named in caught.value.message
    assert caught.value.hint
    if shown := inspected(folder):
        assert any(named in problem for problem in shown["problems"])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"quant_algo": "W4A8_AWQ"}, "quant_algo W4A8_AWQ is not supported"),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "FP8_PER_CHANNEL_PER_TOKEN"),
        ({"kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo INT8"),
        ({"exclude_modules": ["*.1.mlp.*"]}, "leaves transformer.layers.1.mlp.fc unquantised"),
        ({"exclude_modules": "lm_head"}, "exclude_modules"),
        ({"quant_algo": None}, "scaling_factor, which config.json has no place for"),
    ],
)
def test_another_quantisation_is_refused(
    keys: dict[str, Any], named: str, biased_fp8: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(biased_fp8, tmp_path / "ckpt"))
    data = json.loads((folder / "config.json").read_text())
    data["quantization"].update(keys)
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(UsageError) as caught:
        Checkpoint.open(folder)
    assert named in caught.value.message
    assert caught.value.hint


def test_keys_of_tensorrt_llm_are_kept(biased_fp8: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(biased_fp8, tmp_path / "ckpt"))
    data = json.loads((folder / "config.json").read_text())
    theirs = {"group_size": 128, "clamp_val": None, "exclude_modules": ["lm_head", "*layernorm*"]}
    data["quantization"].update(theirs)
    (folder / "config.json").write_text(json.dumps(data))
    build_engine(folder, tmp_path / "engine", BuildSettings())
    built = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert built["pretrained_config"]["quantization"] == data["quantization"]


def weights_changed(biased_hf: Path, target: Path, name: str, value: float) -> Path:
    folder = Path(shutil.copytree(biased_hf, target))
    tensors = load_file(folder / "model.safetensors")
    tensors[name].fill_(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_range_that_gives_no_scale_names_the_layer(
    value: float, biased_hf: Path, tmp_path: Path
) -> None:
    """A norm of these weights makes the input of gate_proj and up_proj so."""
    model = weights_changed(
        biased_hf, tmp_path / "hf", "model.layers.2.post_attention_layernorm.weight", value
    )
    with pytest.raises(TrtlaError, match=r"input of model\.layers\.2\.mlp\.gate_proj") as caught:
        to_fp8(model, tmp_path / "out")
    assert "--calib-data" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_weights_that_are_not_numbers_are_named(biased_hf: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    config, model = (
        HFModel.open(biased_hf).config,
        HFModel.open(weights_changed(biased_hf, tmp_path / "hf", name, math.nan)),
    )
    source = Fp8Source(model, config, {})
    with pytest.raises(UsageError, match=f"tensor {name} holds nan"):
        source.read("model.layers.1.mlp.up_proj.weight_scale", 0, 1)


def test_a_weight_of_zeros_has_a_scale_all_the_same(biased_hf: Path, tmp_path: Path) -> None:
    """Added layers of a model that was made deeper have such weights."""
    name = "model.layers.1.mlp.down_proj.weight"
    folder = to_fp8(weights_changed(biased_hf, tmp_path / "hf", name, 0.0), tmp_path / "ckpt")
    tensors = load_file(folder / "rank0.safetensors")
    assert tensors["transformer.layers.1.mlp.proj.weights_scaling_factor"].item() == 1.0
    assert not tensors["transformer.layers.1.mlp.proj.weight"].float().any()


def test_an_fp8_cache_needs_a_calibration(biased_hf: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs scales"):
        convert(biased_hf, tmp_path / "out", fp8_kv_cache=True)
    with pytest.raises(UsageError, match="no text"):
        to_fp8(biased_hf, tmp_path / "out", [[], ()])
