"""TensorRT-LLM's integer weights: W4A16_AWQ byte by byte, W8A16 and W4A16, and what is refused.

`by_hand` reads int4 weights by the rule of modelopt's pack_int4_in_uint8 and of the library's
loader, one number at a time, and knows nothing of trtla's plan.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.command import needs
from tests.support.fp8_models import PROMPTS
from tests.support.inspected import inspected
from tests.support.models import Variant, assemble, by_hand, make_model, save_model, signed
from tests.support.tensors import equal
from trtla.build.activations import mean_squares
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.errors import UsageError
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.hf import HFModel
from trtla.formats.tensors import pack_int4, unpack_int4
from trtla.formats.torch_tensors import as_tensor

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
MODEL = Variant("weight-only", {**SIZES, "attention_bias": True, "mlp_bias": True})
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(MODEL), MODEL, tmp_path_factory.mktemp("weight-only") / "hf")


@pytest.fixture(scope="module")
def awq(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("awq") / "ckpt"
    return convert(hf, folder, dtype="w4a16_awq", group_size=64)


def changed(folder: Path, target: Path, change: Change) -> Path:
    """A copy whose config and tensors are changed."""
    shutil.copytree(folder, target)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "rank0.safetensors")
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "rank0.safetensors")
    return target


def test_two_outputs_share_a_byte_the_even_one_low() -> None:
    codes = torch.tensor([[-8, 7], [1, -1], [0, 3], [-3, -8]])
    packed = pack_int4(codes.numpy())
    assert packed.dtype == np.int8
    assert packed.view(np.uint8).tolist() == [[0x18, 0xF7], [0xD0, 0x83]]
    assert equal(unpack_int4(packed), codes.to(torch.int8))
    every = np.arange(256, dtype=np.uint8).view(np.int8)[None]
    assert equal(pack_int4(unpack_int4(every)), every)
    assert unpack_int4(every).tolist() == [[signed(b, s) for b in range(256)] for s in (0, 4)]


@pytest.mark.parametrize("tp", [1, 2])
def test_every_rank_holds_exactly_the_tensors_of_the_table(
    tp: int, hf: Path, tmp_path: Path
) -> None:
    folder = convert(hf, tmp_path / "ckpt", dtype="w4a16_awq", group_size=64, tp_size=tp)
    shapes = {  # hidden 128, intermediate 256, 4 query and 2 K/V heads of 32
        "attention.qkv": (256 // tp, 128),
        "attention.dense": (128, 128 // tp),
        "mlp.fc": (256 // tp, 128),
        "mlp.gate": (256 // tp, 128),
        "mlp.proj": (128, 256 // tp),
    }
    layer: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for name, (outputs, inputs) in shapes.items():
        layer[f"{name}.weight"] = ((outputs // 2, inputs), torch.int8)
        layer[f"{name}.weights_scaling_factor"] = ((outputs, inputs // 64), torch.float32)
        layer[f"{name}.prequant_scaling_factor"] = ((inputs,), torch.float16)
        layer[f"{name}.bias"] = ((outputs,), torch.float16)
    for name in ("input_layernorm", "post_layernorm"):
        layer[f"{name}.weight"] = ((128,), torch.float16)
    expected = {f"transformer.layers.{i}.{k}": v for i in range(2) for k, v in layer.items()}
    expected["transformer.vocab_embedding.weight"] = ((101, 128), torch.float16)
    expected["transformer.ln_f.weight"] = ((128,), torch.float16)
    expected["lm_head.weight"] = ((-(-101 // tp), 128), torch.float16)
    for rank in range(tp):
        tensors = load_file(folder / f"rank{rank}.safetensors")
        assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == expected
        ones = [t for name, t in tensors.items() if name.endswith("prequant_scaling_factor")]
        assert all(bool((one == 1).all()) for one in ones)
    assert json.loads((folder / "config.json").read_text())["quantization"] == {
        "quant_algo": "W4A16_AWQ",
        "kv_cache_quant_algo": None,
        "group_size": 64,
        "has_zero_point": False,
        "pre_quant_scale": True,
        "exclude_modules": ["lm_head"],
    }
    assert not inspected(folder).get("problems")


@pytest.mark.parametrize("group_size", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_are_the_nearest_and_scales_numbers_of_the_activations_type(
    dtype: torch.dtype, group_size: int, tmp_path: Path
) -> None:
    model = make_model(MODEL).to(dtype)
    folder = save_model(model, MODEL, tmp_path / "hf")
    convert(folder, tmp_path / "ckpt", dtype="w4a16_awq", group_size=group_size)
    stored = load_file(tmp_path / "ckpt" / "rank0.safetensors")
    state, wanted = assemble(by_hand(tmp_path / "ckpt", tmp_path / "plain")), model.state_dict()
    ours, theirs = "transformer.layers.1.mlp.proj", "model.layers.1.mlp.down_proj.weight"
    scales = stored[f"{ours}.weights_scaling_factor"]
    assert equal(scales, scales.to(dtype).float())
    wide = scales.repeat_interleave(group_size, 1).abs()
    error = (state[theirs] - wanted[theirs].float()).abs()
    inside = wanted[theirs].float().abs() <= 7 * wide
    assert inside.float().mean() > 0.95
    assert (error <= 0.5001 * wide)[inside].all()
    groups = wanted[theirs].float().view(128, -1, group_size)
    sevenths = groups.abs().amax(-1, keepdim=True) / 7  # as modelopt rounds
    nearest = (groups / sevenths).round().clamp(-8, 7) * sevenths
    assert error.square().sum() < (nearest - groups).square().sum()
    for name, tensor in wanted.items():
        allowed = 0.2 if "_proj.weight" in name else 1e-3
        assert (state[name].float() - tensor.float()).norm() < allowed * tensor.float().norm(), name


@pytest.mark.parametrize("pp", [1, 2])
def test_ranks_hold_slices_of_the_whole(pp: int, hf: Path, awq: Path, tmp_path: Path) -> None:
    keys = {"dtype": "w4a16_awq", "group_size": 64, "tp_size": 2, "pp_size": pp}
    split = convert(hf, tmp_path / "split", **keys)
    whole, parts = (
        assemble(by_hand(folder, tmp_path / name)) for folder, name in ((awq, "a"), (split, "b"))
    )
    assert whole.keys() == parts.keys()
    assert all(equal(whole[name], parts[name]) for name in whole)
    again = [dict(Checkpoint.open(folder).full_tensors()) for folder in (awq, split)]
    assert all(equal(again[0][name], again[1][name]) for name in again[0])
    rebuilt = [
        build_engine(folder, tmp_path / f"e{i}", BuildSettings(), backend="torch").path
        for i, folder in enumerate((awq, split))
    ]
    assert len({(path / "rank0.safetensors").read_bytes() for path in rebuilt}) == 1


def test_the_torch_executor_reads_the_numbers_and_those_of_modelopt(
    awq: Path, tmp_path: Path
) -> None:
    """A vector that inputs are multiplied by, other than ones, is what modelopt writes."""

    def vectors(_: object, tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.endswith("prequant_scaling_factor")]:
            tensors[name] = torch.linspace(0.5, 2, len(tensors[name])).half()

    theirs = changed(awq, tmp_path / "theirs", vectors)
    for folder in (awq, theirs):
        engine = build_engine(folder, tmp_path / f"{folder.name}-e", BuildSettings(max_seq_len=16))
        wanted = load_file(by_hand(folder, tmp_path / f"{folder.name}-p") / "rank0.safetensors")
        found = dict(engine.weights())
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert equal(found[name], tensor.half()), name
        assert engine.config.pretrained_config.quantization.quant_algo == "W4A16_AWQ"


def test_calibration_lowers_the_error_of_what_it_has_seen(
    hf: Path, awq: Path, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"dtype": "w4a16_awq", "group_size": 64}
    seen = convert(hf, tmp_path / "seen", **keys, calibration=Calibration(PROMPTS))
    model = HFModel.open(hf)
    weights = mean_squares(hf, model.config, Calibration(PROMPTS))
    errors = []
    for folder, name in ((awq, "a"), (seen, "b")):
        state = assemble(by_hand(folder, tmp_path / name))
        wanted = {name: model.read(name, 0, len(state[name])) for name in weights}
        parts = [((state[n] - wanted[n]).square() * as_tensor(weights[n])).sum() for n in weights]
        errors.append(float(torch.stack(parts).sum()))
    assert errors[1] < 0.99 * errors[0]


@pytest.mark.parametrize("dtype", ["w8a16", "w4a16"])
def test_what_the_library_rounds_is_plain_and_named(dtype: str, hf: Path, tmp_path: Path) -> None:
    named = convert(hf, tmp_path / "named", dtype=dtype, tp_size=2)
    plain = convert(hf, tmp_path / "plain", tp_size=2)
    for rank in ("rank0.safetensors", "rank1.safetensors"):
        assert (named / rank).read_bytes() == (plain / rank).read_bytes()
    config = json.loads((named / "config.json").read_text())
    # A list of modules would replace the default one, which spares the embedding.
    assert config["quantization"] == {"quant_algo": dtype.upper(), "kv_cache_quant_algo": None}
    if shown := inspected(named):
        assert shown["problems"] == []
        assert shown["notes"][-1] == (
            f"TensorRT-LLM rounds the linear weights to {dtype.upper()} when it builds; the torch "
            "executor runs them as they are"
        )
    engines = [build_engine(one, tmp_path / f"{one.name}-engine", BuildSettings(), backend="torch")
               for one in (named, plain)]  # fmt: skip
    weights = [dict(engine.weights()) for engine in engines]
    assert all(equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert not inspected(plain).get("notes")


@needs("inspect")
def test_inspect_counts_int4(awq: Path) -> None:
    shown = inspected(awq)["weight_types"]
    numbers = 2 * (256 * 128 + 128 * 128 + 3 * 128 * 256)
    assert shown["int4"] == {"tensors": 10, "bytes": numbers // 2, "bits_per_weight": 4.0}
    assert shown["float32"]["bytes"] == numbers // 64 * 4


@pytest.mark.parametrize(
    ("sizes", "keys", "said", "hint"),
    [
        ({}, {"dtype": "w4a16_awq", "group_size": 32},
         "group size 32 is unknown to W4A16_AWQ", "use 64 or 128"),
        ({"intermediate_size": 192}, {"dtype": "w4a16_awq"},
         "192 outputs of mlp.fc are no multiple of 128", "use --group-size 64 or another"),
        ({}, {"dtype": "w4a16_awq", "tp_size": 2},
         "128 inputs of attention.qkv are no multiple of 256", "--group-size 64 or a smaller --tp"),
        ({}, {"dtype": "w8a16", "tp_size": 4},  # K/V heads are on two ranks each
         "384 outputs of attention.qkv are no multiple of 256", "a smaller --tp-size"),
        ({"intermediate_size": 96}, {"dtype": "w4a16"},
         "96 outputs of mlp.fc are no multiple of 64", "use another --dtype"),
        ({}, {"dtype": "w8a16", "calibration": Calibration(PROMPTS)},
         "w8a16 needs no calibration", "omit"),
        ({}, {"dtype": "w4a16_awq", "fp8_kv_cache": True}, "FP8 K/V cache needs scales", "fp8"),
        ({}, {"dtype": "w4a16_awq", "tp_size": 3}, "tp_size 3 does not divide", "--tp-size"),
    ],
)  # fmt: skip
def test_what_the_kernels_do_not_take_is_refused_before_anything_is_read(
    sizes: dict[str, int], keys: dict[str, Any], said: str, hint: str, tmp_path: Path
) -> None:
    odd = Variant("odd", {**SIZES, **sizes})
    folder = save_model(make_model(odd), odd, tmp_path / "hf")
    with pytest.raises(UsageError, match=said) as caught:
        convert(folder, tmp_path / "out", **keys)
    assert hint in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


def _without_scales(_: object, tensors: dict[str, torch.Tensor]) -> None:
    for name in [n for n in tensors if n.endswith("weights_scaling_factor")]:
        del tensors[name]


def _keys(**keys: Any) -> Change:
    return lambda config, _: config["quantization"].update(keys)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_keys(has_zero_point=True), "W4A16_AWQ with has_zero_point is not supported"),
        (_keys(group_size=32), "group_size 32 is not supported"),
        (_keys(group_size=128), "weights_scaling_factor has shape"),
        (_keys(exclude_modules=["*.mlp.*"]), "leaves transformer.layers.0.mlp.fc unquantised"),
        (_keys(pre_quant_scale=False), "prequant_scaling_factor, which config.json has no place"),
        (_keys(quant_algo="W4A16"), "weight has shape"),
        (_without_scales, "lacks tensor"),
        (lambda _, t: t.update({n: w.view(torch.uint8) for n, w in t.items()
                                if w.dtype == torch.int8}), "is uint8, trtla reads int8, two int4"),
    ],
)  # fmt: skip
def test_checkpoints_that_do_not_fit_are_refused(
    change: Change, said: str, awq: Path, tmp_path: Path
) -> None:
    folder = changed(awq, tmp_path / "ckpt", change)
    with pytest.raises(UsageError, match=r"rank0|config\.json") as caught:
        Checkpoint.open(folder)
    assert caught.value.hint
    if shown := inspected(folder):
        assert any(said in problem for problem in shown["problems"])


def test_without_input_scales_the_numbers_are_the_same(awq: Path, tmp_path: Path) -> None:
    def drop(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        config["quantization"]["pre_quant_scale"] = False
        for own in [n for n in tensors if n.endswith("prequant_scaling_factor")]:
            del tensors[own]

    found = dict(Checkpoint.open(changed(awq, tmp_path / "ckpt", drop)).full_tensors())
    wanted = dict(Checkpoint.open(awq).full_tensors())
    assert found.keys() == wanted.keys()
    assert all(equal(found[name], wanted[name]) for name in wanted)
