"""FP8 checkpoints: layout, scales against a hand-made forward, splits, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.support.examples import examples
from tests.support.fp8_models import LINEARS, PROMPTS, to_fp8
from tests.support.inspected import inspected
from tests.support.models import VARIANTS, assemble, configs, make_model, named, save_model
from tests.support.tensors import equal
from trtla.build.activations import calibrate
from trtla.build.engine import build_engine, describe_build
from trtla.build.quantize import Calibration
from trtla.formats.checkpoint import Checkpoint, weight_bytes, write_ranks
from trtla.formats.config import DTYPE_BYTES, CheckpointConfig, Quantization
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.hf import HFModel
from trtla.formats.plan import fp8_groups, rank_plan, source_shapes
from trtla.formats.tensors import E4M3, numpy_dtype, scale_of
from trtla.formats.torch_tensors import as_array, dequantize, quantize


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
    tp: int, kv_cache: bool, biased_hf: Path, tmp_path: Path
) -> None:
    folder = to_fp8(biased_hf, tmp_path / "ckpt", fp8_kv_cache=kv_cache, tp_size=tp)
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


def test_calibration_sees_what_a_hand_made_forward_computes(biased_hf: Path) -> None:
    found = calibrate(biased_hf, HFModel.open(biased_hf).config, Calibration(PROMPTS))
    expected = hand_made_ranges(load_file(biased_hf / "model.safetensors"), PROMPTS)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5)


def test_scales_are_the_largest_value_over_448(biased_hf: Path, biased_fp8: Path) -> None:
    model, tensors = (
        load_file(biased_hf / "model.safetensors"),
        load_file(biased_fp8 / "rank0.safetensors"),
    )
    ranges = hand_made_ranges(model, PROMPTS)
    sources = (("qkv_proj", "q k v"), ("o_proj", "o"), ("gate_proj", "gate up"))
    sources += (("up_proj", "gate up"),)  # one scale: the library fuses both and takes the larger
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


@examples(100)
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
        assert equal(quantize(dequantize(numbers, scale, torch.float32), scale), numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    values, scale = torch.linspace(0.1, 30, 2000).to(dtype), torch.tensor(0.0731)
    assert equal(quantize(values, scale), quantize(values.double(), scale))
    numbers = quantize(values, scale)
    wide = dequantize(numbers, scale, torch.float32)
    assert equal(dequantize(numbers, scale, dtype), wide.to(dtype))


def test_values_beyond_the_range_saturate() -> None:
    numbers = quantize(torch.tensor([1e9, -1e9, math.inf]), torch.tensor(0.5))
    assert numbers.float().tolist() == [448.0, -448.0, 448.0]


@pytest.mark.parametrize("name", named(VARIANTS))
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
    assert all(equal(state[key], original[key]) for key in rest)


def test_an_engine_is_the_same_from_any_split(
    biased_hf: Path, biased_fp8: Path, biased_fp8_split: Path, tmp_path: Path
) -> None:
    four = to_fp8(biased_hf, tmp_path / "four", fp8_kv_cache=True, tp_size=4)
    engines = [
        build_engine(source, tmp_path / f"engine{i}", BuildSettings())
        for i, source in enumerate((biased_fp8, biased_fp8_split, four))
    ]
    one, *others = [(e.path / "rank0.safetensors").read_bytes() for e in engines]
    assert all(other == one for other in others)
    assert (biased_fp8 / "rank0.safetensors").read_bytes() == one
    assert len({e.manifest.source_sha256 for e in engines if e.manifest}) == 1
    assert open_engine(engines[0].path).config.pretrained_config.fp8_kv_cache


def test_converting_twice_gives_the_same_bytes(
    biased_hf: Path, biased_fp8: Path, tmp_path: Path
) -> None:
    again = to_fp8(biased_hf, tmp_path / "again", iter(PROMPTS), fp8_kv_cache=True)
    for name in ("rank0.safetensors", "config.json"):
        assert (again / name).read_bytes() == (biased_fp8 / name).read_bytes()


def test_int8_tensors_are_read_as_fp8(biased_fp8: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(biased_fp8, tmp_path / "ckpt"))
    tensors = load_file(folder / "rank0.safetensors")
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            tensors[name] = tensor.view(torch.int8)
    save_file(tensors, folder / "rank0.safetensors")
    for source in (folder, biased_fp8):
        build_engine(source, tmp_path / f"engine-{source == biased_fp8}", BuildSettings())
    one, two = (tmp_path / f"engine-{x}" / "rank0.safetensors" for x in (False, True))
    assert one.read_bytes() == two.read_bytes()


def test_a_build_changes_the_dtype_of_what_is_not_quantised(
    biased_fp8: Path, tmp_path: Path
) -> None:
    engine = build_engine(biased_fp8, tmp_path / "engine", BuildSettings(), dtype="bfloat16")
    tensors = dict(engine.weights())
    assert tensors["transformer.ln_f.weight"].dtype.name == "bfloat16"
    assert tensors["transformer.layers.0.mlp.fc.weight"].dtype == E4M3
    assert tensors["transformer.layers.0.mlp.fc.weights_scaling_factor"].dtype == np.float32


def test_sizes_count_every_tensor_in_its_own_type(biased_hf: Path, biased_fp8: Path) -> None:
    size = sum(t.nbytes for t in load_file(biased_fp8 / "rank0.safetensors").values())
    assert weight_bytes(Checkpoint.open(biased_fp8).config) == size
    assert describe_build(biased_fp8, BuildSettings()).memory.weight_bytes == size
    if shown := inspected(biased_fp8):
        assert shown["problems"] == []
        assert shown["parameters"] == inspected(biased_hf)["parameters"]  # scales are none


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
        dtypes = {block.source: numpy_dtype(t.dtype) for t in plan for block in t.blocks}
        self.tensors = {}
        for number, (name, shape) in enumerate(source_shapes(config).items(), 1):
            values = torch.arange(number, number + torch.Size(shape).numel()) % 113 + 1
            self.tensors[name] = (
                values.to(torch.uint8).view(torch.float8_e4m3fn)
                if dtypes[name] == E4M3
                else values.float()
            ).view(shape)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        return as_array(self.tensors[name][start:stop])


@examples(40)
@given(config=fp8_configs)
def test_split_then_reassemble_is_the_identity_and_files_are_aligned(
    config: CheckpointConfig,
) -> None:
    source = Fp8DictSource(config)
    with tempfile.TemporaryDirectory() as folder:
        write_ranks(Path(folder), config, source)
        for rank in range(config.mapping.world_size):
            tensors = load_file(Path(folder) / f"rank{rank}.safetensors")  # fails if not aligned
            sizes = [DTYPE_BYTES[target.dtype] for target in rank_plan(config, rank)]
            assert sizes == sorted(sizes, reverse=True)
            assert len(tensors) == len(sizes)
        files = Checkpoint(Path(folder), config)
        for name, tensor in source.tensors.items():
            found = files.read(name, 0, len(tensor))
            assert f"torch.{found.dtype}" == str(tensor.dtype)
            assert equal(found.view(np.uint8), tensor.view(torch.uint8))
