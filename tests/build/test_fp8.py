"""FP8 checkpoints: layout, scales against a hand-made forward, splits, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.build.models import BASE, VARIANTS, Variant, assemble, make_model, save_model
from tests.build.test_split_properties import configs
from trtla.build.calibration import Calibration, calibrate
from trtla.build.checkpoint import Checkpoint, RankFiles
from trtla.build.convert import convert
from trtla.build.engine import BuildSettings, build_engine, describe_build, open_engine
from trtla.build.fp8 import Fp8Source
from trtla.build.hf import HFModel
from trtla.build.hf_config import read_hf_config
from trtla.build.plan import DTYPE_BYTES, fp8_groups, hf_shapes, rank_plan, source_shapes
from trtla.build.rank_writer import RankWriter, weight_bytes
from trtla.build.source import torch_dtype
from trtla.calibration_data import calibration, texts
from trtla.config import CheckpointConfig, Quantization
from trtla.e4m3 import dequantize, quantize, scale_of
from trtla.errors import TrtlaError, UsageError
from trtla.inspect_folder import inspect

BIASED = Variant("biased", {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True})
PROMPTS = [[i * 7 % 101 for i in range(12)], [5, 3], [i * i % 101 for i in range(16)]]
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def to_fp8(hf: Path, target: Path, prompts: Any = PROMPTS, **keys: Any) -> Path:
    return convert(hf, target, calibration=Calibration(prompts), **keys).path


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(BIASED), BIASED, tmp_path_factory.mktemp("fp8") / "hf")


@pytest.fixture(scope="module")
def whole(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_fp8(hf, tmp_path_factory.mktemp("fp8") / "ckpt", fp8_kv_cache=True)


@pytest.fixture(scope="module")
def split(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fp8") / "ckpt"
    return to_fp8(hf, target, fp8_kv_cache=True, tp_size=2, pp_size=2)


def layer_table(tp: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """TensorRT-LLM's table for hidden 64, intermediate 96, 4 query and 2 K/V heads of 16."""
    qkv = (4 + 2 * max(2, tp)) * 16 // tp
    weights = {
        "attention.qkv": (qkv, 64),
        "attention.dense": (64, 64 // tp),
        "mlp.fc": (96 // tp, 64),
        "mlp.gate": (96 // tp, 64),
        "mlp.proj": (64, 96 // tp),
    }
    whole_bias = ("attention.dense", "mlp.proj")
    table: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for name, shape in weights.items():
        table[f"{name}.weight"] = (shape, torch.float8_e4m3fn)
        table[f"{name}.weights_scaling_factor"] = ((1,), torch.float32)
        table[f"{name}.activation_scaling_factor"] = ((1,), torch.float32)
        table[f"{name}.bias"] = ((64,) if name in whole_bias else shape[:1], torch.float16)
    for name in ("input_layernorm", "post_layernorm"):
        table[f"{name}.weight"] = ((64,), torch.float16)
    return table


@pytest.mark.parametrize("kv_cache", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_rank_holds_exactly_the_tensors_of_the_table(
    tp: int, kv_cache: bool, hf: Path, tmp_path: Path
) -> None:
    folder = to_fp8(hf, tmp_path / "ckpt", fp8_kv_cache=kv_cache, tp_size=tp)
    layer = layer_table(tp)
    if kv_cache:
        layer["attention.kv_cache_scaling_factor"] = ((1,), torch.float32)
    expected = {f"transformer.layers.{i}.{k}": v for i in range(4) for k, v in layer.items()}
    expected["transformer.vocab_embedding.weight"] = ((101, 64), torch.float16)
    expected["transformer.ln_f.weight"] = ((64,), torch.float16)
    expected["lm_head.weight"] = ((-(-101 // tp), 64), torch.float16)
    for rank in range(tp):
        tensors = load_file(folder / f"rank{rank}.safetensors")
        assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == expected
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "float16"
    assert config["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8" if kv_cache else None,
        "exclude_modules": ["lm_head"],
    }


def hand_made_ranges(state: dict[str, torch.Tensor], prompts: list[list[int]]) -> dict[str, float]:
    """Largest inputs, keys and values of a plain Llama forward, written out."""
    seen: dict[str, float] = {}

    def see(name: str, values: torch.Tensor) -> torch.Tensor:
        seen[name] = max(seen.get(name, 0.0), values.abs().max().item())
        return values

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * state[f"{name}.weight"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]

    def turn(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    for prompt in prompts:
        x = state["model.embed_tokens.weight"][prompt]
        for i in range(4):
            at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            h = see(f"{at}.qkv_proj.input_scale", norm(x, f"model.layers.{i}.input_layernorm"))
            heads = [linear(h, f"{at}.{n}_proj").view(len(prompt), -1, 16) for n in "qkv"]
            q, k, v = (part.transpose(0, 1) for part in heads)
            q, k = turn(q), see(f"{at}.kv_scale", turn(k))
            k, v = (part.repeat_interleave(2, 0) for part in (k, see(f"{at}.kv_scale", v)))
            scores = q @ k.transpose(1, 2) / 4
            hidden = torch.ones(len(prompt), len(prompt), dtype=torch.bool).triu(1)
            out = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
            out = out.transpose(0, 1).reshape(len(prompt), -1)
            x = x + linear(see(f"{at}.o_proj.input_scale", out), f"{at}.o_proj")
            h = norm(x, f"model.layers.{i}.post_attention_layernorm")
            see(f"{mlp}.gate_proj.input_scale", h)
            see(f"{mlp}.up_proj.input_scale", h)
            gate, up = linear(h, f"{mlp}.gate_proj"), linear(h, f"{mlp}.up_proj")
            out = see(f"{mlp}.down_proj.input_scale", gate * gate.sigmoid() * up)
            x = x + linear(out, f"{mlp}.down_proj")
    return seen


def test_calibration_sees_what_a_hand_made_forward_computes(hf: Path) -> None:
    found = calibrate(hf, HFModel.open(hf).config, Calibration(PROMPTS))
    expected = hand_made_ranges(load_file(hf / "model.safetensors"), PROMPTS)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5)


def test_scales_are_the_largest_value_over_448(hf: Path, whole: Path) -> None:
    model, tensors = load_file(hf / "model.safetensors"), load_file(whole / "rank0.safetensors")
    ranges = hand_made_ranges(model, PROMPTS)
    sources = (("qkv_proj", "q k v"), ("o_proj", "o"), ("gate_proj", "gate"), ("up_proj", "up"))
    for i in range(4):
        for ours, (name, parts) in zip(LINEARS, (*sources, ("down_proj", "down")), strict=True):
            where = f"model.layers.{i}.{'self_attn' if 'attention' in ours else 'mlp'}"
            weights = [model[f"{where}.{part}_proj.weight"] for part in parts.split()]
            prefix = f"transformer.layers.{i}.{ours}"
            largest = max(weight.abs().max().item() for weight in weights)
            assert tensors[f"{prefix}.weights_scaling_factor"].item() == pytest.approx(
                largest / 448, rel=1e-6
            )
            assert tensors[f"{prefix}.activation_scaling_factor"].item() == pytest.approx(
                ranges[f"{where}.{name}.input_scale"] / 448, rel=1e-5
            )
        kv = tensors[f"transformer.layers.{i}.attention.kv_cache_scaling_factor"].item()
        expected = ranges[f"model.layers.{i}.self_attn.kv_scale"] / 448
        assert kv == pytest.approx(expected, rel=1e-5)


def assert_half_a_step(original: torch.Tensor, numbers: torch.Tensor, scale: torch.Tensor) -> None:
    """Three bits of mantissa: half a step is 1/16 of the value, below 2^-6 of it 2^-10."""
    error = (dequantize(numbers, scale, torch.float64) - original.double()).abs()
    bound = torch.maximum(original.double().abs() / 16, scale.double() * 2.0**-10)
    assert (error <= bound * (1 + 1e-6)).all()


@settings(max_examples=100)
@given(
    values=st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=50),
    power=st.integers(-30, 10),
)
def test_quantising_rounds_to_the_nearest_number(values: list[float], power: int) -> None:
    original = torch.tensor(values) * 2.0**power
    scale = torch.tensor(scale_of(original.abs().max().item()))
    if scale > 2**-100:  # below, the numbers themselves are subnormal
        numbers = quantize(original, scale)
        assert_half_a_step(original, numbers, scale)
        assert torch.equal(quantize(dequantize(numbers, scale, torch.float32), scale), numbers)


def test_values_beyond_the_range_saturate() -> None:
    numbers = quantize(torch.tensor([1e9, -1e9, math.inf]), torch.tensor(0.5))
    assert numbers.float().tolist() == [448.0, -448.0, 448.0]


@pytest.mark.parametrize("name", [variant.name for variant in VARIANTS])
def test_weights_of_every_kind_of_model_are_half_a_step_from_the_originals(
    name: str, tmp_path: Path
) -> None:
    variant = next(v for v in VARIANTS if v.name == name)
    model = make_model(variant)
    save_model(model, variant, tmp_path / "hf")
    folder = to_fp8(tmp_path / "hf", tmp_path / "ckpt", tp_size=2, dtype="float32")
    state, original = assemble(folder), model.state_dict()
    tensors = dict(Checkpoint.open(folder).full_tensors())
    config = Checkpoint.open(folder).config
    scales = {
        t.blocks[0].source: tensors[t.name].item()
        for t in rank_plan(config, 0)
        if t.name.endswith("weights_scaling_factor") and t.name in tensors
    }
    for linear, weights in fp8_groups(config).items():
        for weight in weights:
            scale = torch.tensor(scales[f"{linear}.weight_scale"])
            assert state[weight].dtype == torch.float8_e4m3fn
            assert_half_a_step(original[weight], state[weight], scale)
    rest = state.keys() - {w for weights in fp8_groups(config).values() for w in weights}
    assert all(torch.equal(state[key], original[key]) for key in rest)


def test_an_engine_is_the_same_from_any_split(
    hf: Path, whole: Path, split: Path, tmp_path: Path
) -> None:
    four = to_fp8(hf, tmp_path / "four", fp8_kv_cache=True, tp_size=4)
    engines = [
        build_engine(source, tmp_path / f"engine{i}", BuildSettings())
        for i, source in enumerate((whole, split, four))
    ]
    one, *others = [(e.path / "rank0.safetensors").read_bytes() for e in engines]
    assert all(other == one for other in others)
    assert (whole / "rank0.safetensors").read_bytes() == one
    assert len({e.manifest.source_sha256 for e in engines if e.manifest}) == 1
    assert open_engine(engines[0].path).config.pretrained_config.fp8_kv_cache


def test_converting_twice_gives_the_same_bytes(hf: Path, whole: Path, tmp_path: Path) -> None:
    again = to_fp8(hf, tmp_path / "again", iter(PROMPTS), fp8_kv_cache=True)
    for name in ("rank0.safetensors", "config.json"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_int8_tensors_are_read_as_fp8(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "ckpt"))
    tensors = load_file(folder / "rank0.safetensors")
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            tensors[name] = tensor.view(torch.int8)
    save_file(tensors, folder / "rank0.safetensors")
    for source in (folder, whole):
        build_engine(source, tmp_path / f"engine-{source == whole}", BuildSettings())
    one, two = (tmp_path / f"engine-{x}" / "rank0.safetensors" for x in (False, True))
    assert one.read_bytes() == two.read_bytes()


def test_a_build_changes_the_dtype_of_what_is_not_quantised(whole: Path, tmp_path: Path) -> None:
    engine = build_engine(whole, tmp_path / "engine", BuildSettings(), dtype="bfloat16")
    tensors = dict(engine.weights())
    assert tensors["transformer.ln_f.weight"].dtype == torch.bfloat16
    assert tensors["transformer.layers.0.mlp.fc.weight"].dtype == torch.float8_e4m3fn
    assert tensors["transformer.layers.0.mlp.fc.weights_scaling_factor"].dtype == torch.float32


def test_sizes_count_every_tensor_in_its_own_type(whole: Path) -> None:
    size = sum(t.nbytes for t in load_file(whole / "rank0.safetensors").values())
    assert weight_bytes(Checkpoint.open(whole).config) == size
    assert describe_build(whole, BuildSettings()).memory.weight_bytes == size
    assert inspect(whole)["problems"] == []


def test_scales_are_no_parameters(hf: Path, whole: Path) -> None:
    assert inspect(whole)["parameters"] == inspect(hf)["parameters"]


fp8_configs = st.builds(
    lambda config, kv: config.model_copy(
        update={"quantization": Quantization(quant_algo="FP8", kv_cache_quant_algo=kv)}
    ),
    configs(),
    st.sampled_from(["FP8", None]),
)


class Fp8DictSource:
    """FP8 weights, scales and the rest in memory, each element another one where that can be."""

    def __init__(self, config: CheckpointConfig) -> None:
        plan = [t for rank in range(config.mapping.world_size) for t in rank_plan(config, rank)]
        dtypes = {block.source: torch_dtype(t.dtype) for t in plan for block in t.blocks}
        self.tensors = {}
        for number, (name, shape) in enumerate(source_shapes(config).items(), 1):
            values = torch.arange(number, number + torch.Size(shape).numel()) % 113 + 1
            self.tensors[name] = (
                values.to(torch.uint8).view(torch.float8_e4m3fn)
                if dtypes[name] == torch.float8_e4m3fn
                else values.float()
            ).view(shape)

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        return self.tensors[name][start:stop]


@settings(max_examples=40, deadline=None)
@given(config=fp8_configs)
def test_split_then_reassemble_is_the_identity_and_files_are_aligned(
    config: CheckpointConfig,
) -> None:
    source = Fp8DictSource(config)
    with tempfile.TemporaryDirectory() as folder:
        RankWriter(Path(folder), config).write(source)
        for rank in range(config.mapping.world_size):
            tensors = load_file(Path(folder) / f"rank{rank}.safetensors")  # fails if not aligned
            sizes = [DTYPE_BYTES[target.dtype] for target in rank_plan(config, rank)]
            assert sizes == sorted(sizes, reverse=True)
            assert len(tensors) == len(sizes)
        files = RankFiles(Path(folder), config)
        for name, tensor in source.tensors.items():
            found = files.read(name, 0, len(tensor))
            assert found.dtype == tensor.dtype
            assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


# What is refused.

Change = Callable[[dict[str, torch.Tensor]], Any]
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
    change: Change, named: str, hf: Path, split: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(split, tmp_path / "ckpt"))
    tensors = load_file(folder / "rank3.safetensors")
    change(tensors)
    save_file(tensors, folder / "rank3.safetensors")
    with pytest.raises(UsageError) as caught:
        Checkpoint.open(folder)
    assert named in caught.value.message
    assert caught.value.hint
    assert any(named in problem for problem in inspect(folder)["problems"])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"quant_algo": "W4A16_AWQ"}, "quant_algo W4A16_AWQ is not supported"),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "FP8_PER_CHANNEL_PER_TOKEN"),
        ({"kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo INT8"),
        ({"exclude_modules": ["*.1.mlp.*"]}, "leaves transformer.layers.1.mlp.fc unquantised"),
        ({"exclude_modules": "lm_head"}, "exclude_modules"),
        ({"quant_algo": None}, "scaling_factor, which config.json has no place for"),
    ],
)
def test_another_quantisation_is_refused(
    keys: dict[str, Any], named: str, whole: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "ckpt"))
    data = json.loads((folder / "config.json").read_text())
    data["quantization"].update(keys)
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(UsageError) as caught:
        Checkpoint.open(folder)
    assert named in caught.value.message
    assert caught.value.hint


def test_keys_of_tensorrt_llm_are_kept(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "ckpt"))
    data = json.loads((folder / "config.json").read_text())
    theirs = {"group_size": 128, "clamp_val": None, "exclude_modules": ["lm_head", "*layernorm*"]}
    data["quantization"].update(theirs)
    (folder / "config.json").write_text(json.dumps(data))
    build_engine(folder, tmp_path / "engine", BuildSettings())
    built = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert built["pretrained_config"]["quantization"] == data["quantization"]


def weights_changed(hf: Path, target: Path, name: str, value: float) -> Path:
    folder = Path(shutil.copytree(hf, target))
    tensors = load_file(folder / "model.safetensors")
    tensors[name].fill_(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_range_that_gives_no_scale_names_the_layer(
    value: float, hf: Path, tmp_path: Path
) -> None:
    """A norm of these weights makes the input of gate_proj and up_proj so."""
    model = weights_changed(
        hf, tmp_path / "hf", "model.layers.2.post_attention_layernorm.weight", value
    )
    with pytest.raises(TrtlaError, match=r"input of model\.layers\.2\.mlp\.gate_proj") as caught:
        to_fp8(model, tmp_path / "out")
    assert "--calib-data" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_weights_that_are_not_numbers_are_named(hf: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    config, model = (
        HFModel.open(hf).config,
        HFModel.open(weights_changed(hf, tmp_path / "hf", name, math.nan)),
    )
    source = Fp8Source(model, config, {})
    with pytest.raises(UsageError, match=f"tensor {name} holds nan"):
        source.read("model.layers.1.mlp.up_proj.weight_scale", 0, 1)


def test_a_weight_of_zeros_has_a_scale_all_the_same(hf: Path, tmp_path: Path) -> None:
    """Added layers of a model that was made deeper have such weights."""
    name = "model.layers.1.mlp.down_proj.weight"
    folder = to_fp8(weights_changed(hf, tmp_path / "hf", name, 0.0), tmp_path / "ckpt")
    tensors = load_file(folder / "rank0.safetensors")
    assert tensors["transformer.layers.1.mlp.proj.weights_scaling_factor"].item() == 1.0
    assert not tensors["transformer.layers.1.mlp.proj.weight"].float().any()


def test_an_fp8_cache_needs_a_calibration(hf: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs scales"):
        convert(hf, tmp_path / "out", fp8_kv_cache=True)
    with pytest.raises(UsageError, match="no text"):
        to_fp8(hf, tmp_path / "out", [[], ()])


# Calibration data.


def test_texts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"text": "one", "id": 3}\n\n{"article": "two", "highlights": "x"}\n')
    assert list(texts(str(lines), 9)) == ["one", "two"]
    plain = tmp_path / "t.txt"
    plain.write_text("a" * 2048 + "b" * 10)
    assert list(texts(str(plain), 9)) == ["a" * 2048, "b" * 10]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("t.jsonl", '{"text": "a"}\n{"title": "b"}\n', 'line 2 of .* needs either "text" or'),
        ("t.jsonl", "[1]\n", "line 1 of .* is not a JSON object"),
        ("t.csv", "a", "neither cnn_dailymail nor a .txt or .jsonl file"),
    ],
)
def test_bad_files_are_refused(name: str, content: str, named: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=named):
        list(texts(str(tmp_path / name), 9))
    with pytest.raises(UsageError, match="does not exist"):
        list(texts(str(tmp_path / "absent.txt"), 9))


def test_articles_come_from_the_train_split(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def rows(*args: Any) -> list[dict[str, str]]:
        asked.append(args)
        return [{"article": f"def f{i}(): pass", "highlights": ""} for i in range(3)]

    monkeypatch.setattr("trtla.calibration_data.load_rows", rows)
    assert len(list(calibration(tiny_llama, size=2).prompts)) == 2
    assert asked[0][:2] == ("train", 2)


def test_a_missing_package_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtla.calibration_data.find_spec", lambda name: None)
    with pytest.raises(TrtlaError, match='"datasets" package') as caught:
        list(texts("cnn_dailymail", 3))
    assert "pip install" in str(caught.value.hint)
    assert "--calib-data PATH" in str(caught.value.hint)


def test_long_texts_are_cut_to_512_tokens_and_to_the_models_positions(
    hf: Path, tmp_path: Path
) -> None:
    """The model knows 16 positions: what comes later is not read."""
    config = HFModel.open(hf).config
    prompt = PROMPTS[2]
    longer = calibrate(hf, config, Calibration([[*prompt, 99, 98, 97]]))
    assert longer == calibrate(hf, config, Calibration([prompt]))


MEASURE = """
import resource, sys
from pathlib import Path
from trtla.build.fp8 import Fp8Source
from trtla.build.hf import HFModel
from trtla.build.plan import source_shapes
from trtla.build.rank_writer import RankWriter
from trtla.config import Quantization
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
model = HFModel.open(sys.argv[1])
config = model.config.model_copy(update={"quantization": Quantization(quant_algo="FP8")})
ranges = {name: 1.0 for name in source_shapes(config) if name.endswith("input_scale")}
before = peak()
RankWriter(Path(sys.argv[2]), config).write(Fp8Source(model, config, ranges))
print(peak() - before)
"""
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}


def test_writing_fp8_keeps_a_piece_in_memory_not_the_model(tmp_path: Path) -> None:
    variant = Variant("large", {**LARGE, "num_attention_heads": 16})
    config = {**BASE, **variant.keys, "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "hf").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    shapes = hf_shapes(read_hf_config(tmp_path / "hf" / "config.json")[0])
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "hf"), str(tmp_path / "out")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    size = (tmp_path / "out" / "rank0.safetensors").stat().st_size / 2**20
    assert size > 55
    assert int(out) < 40, f"{out} MiB for {size:.0f} MiB of FP8"
