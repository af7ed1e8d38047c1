"""int8 and int4 conversion: the search of the scales, calibration, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.support.compiled import filled
from tests.support.examples import examples
from tests.support.fp8_models import PROMPTS
from tests.support.inspected import inspected
from tests.support.models import Variant, make_model, save_model
from tests.support.tensors import equal
from trtla.build.activations import mean_squares
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockTensor, dequantize_blocks
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.hf import HFModel
from trtla.formats.shapes import hf_shapes
from trtla.formats.tensors import BFLOAT16, FLOAT32, Dequantized
from trtla.formats.torch_tensors import as_tensor
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.rounding import INTEGERS, best_codes, nearest_codes, round_rows

CPU = torch.device("cpu")
KINDS = [kind for kinds in INTEGERS.values() for kind in kinds]
SMALL = Variant("small", {"hidden_size": 128, "intermediate_size": 256, "mlp_bias": True})
TIED = Variant("tied", {**SMALL.keys, "tie_word_embeddings": True})


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(SMALL), SMALL, tmp_path_factory.mktemp("rounding") / "hf")


def noise(rows: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, inputs), dtype=np.float32)


def squares(
    kind: str, values: np.ndarray, rows: np.ndarray, weights: np.ndarray | float = 1.0
) -> float:
    found = dequantize_blocks(BLOCK_TYPES[kind], rows)
    return float((np.square(found - values) * weights).sum(dtype=np.float64))


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(0, 3), st.booleans())
def test_no_block_is_worse_than_rounded_to_nearest(
    kind: str, seed: int, size: float, spikes: int, weighted: bool
) -> None:
    block = BLOCK_TYPES[kind]
    values = noise(3, 2 * block.inputs, seed) * np.float32(10**size)
    values = values.reshape(3, 2, -1)
    values[:, :, :spikes] *= 20
    weights = (
        np.square(noise(2, block.inputs, seed + 1)) if weighted else np.ones((2, block.inputs))
    )
    errors = []
    for codes, scales in (nearest_codes(block, values), best_codes(block, values, weights)):
        assert scales.dtype == np.float16
        lowest, highest = (-8, 7) if block.bits == 4 else (-127, 127)
        assert np.array_equal(codes, np.rint(codes))
        assert lowest <= codes.min() <= codes.max() <= highest
        errors.append((np.square(codes * scales.astype(np.float32) - values) * weights).sum(-1))
    assert (errors[1] <= errors[0]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_pays(kind: str) -> None:
    block, values = BLOCK_TYPES[kind], noise(64, 256)
    codes, scales = nearest_codes(block, values.reshape(64, -1, block.inputs))
    plain = (codes * scales.astype(np.float32)).reshape(64, -1) - values
    assert squares(kind, values, round_rows(block, values)) < 0.95 * float(np.square(plain).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_smaller_where_they_count(kind: str) -> None:
    block, values = BLOCK_TYPES[kind], noise(64, 256)
    weights = noise(1, 256, 5)[0] ** 4 + np.float32(1e-3)
    plain, weighed = round_rows(block, values), round_rows(block, values, weights)
    assert squares(kind, values, weighed, weights) < 0.97 * squares(kind, values, plain, weights)
    assert squares(kind, values, weighed) > squares(kind, values, plain)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_the_bytes_are_ggmls(kind: str) -> None:
    """Numbers of the type come back bit by bit, and the library reads the same numbers."""
    rows = gguf.quantize(noise(8, 128), gguf.GGMLQuantizationType[kind])
    values = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    ours = round_rows(BLOCK_TYPES[kind], values)
    again = gguf.dequantize(ours, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(again, dequantize_blocks(BLOCK_TYPES[kind], ours))
    assert np.array_equal(again, values)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_zeros_and_of_tiny_numbers_are_zeros(kind: str) -> None:
    block = BLOCK_TYPES[kind]
    values = np.zeros((3, 256), np.float32)
    values[1], values[2] = 1e-12, -1e-38
    for weights in (None, np.zeros(256, np.float32), np.full(256, 1e-20, np.float32)):
        found = dequantize_blocks(block, round_rows(block, values, weights))
        assert not found.any()


def numbers(folder: Path) -> dict[str, torch.Tensor]:
    source = Checkpoint.open(folder)
    read = Dequantized(source, source.config.block_types).read
    shapes = hf_shapes(source.config).items()
    return {name: as_tensor(read(name, 0, shape[0])) for name, shape in shapes}


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_one_number_near_zero_has_codes_for_any_type_of_scales(dtype: np.dtype[Any]) -> None:
    values = np.zeros((1, 1, 128), np.float32)
    values[..., 5] = 1e-39
    codes, scales = best_codes(BLOCK_TYPES["Q4_G128"], values, np.ones((1, 128), np.float32), dtype)
    assert np.isfinite(codes).all()
    assert np.abs(codes * scales.astype(np.float32) - values).max() <= 1e-39


@pytest.mark.parametrize("variant", [SMALL, TIED], ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_model_keeps_its_numbers_as_far_as_its_bits_go(
    dtype: str, variant: Variant, tmp_path: Path
) -> None:
    model = make_model(variant)
    folder = save_model(model, variant, tmp_path / "hf")
    convert(folder, tmp_path / "ckpt", dtype=dtype)
    here, wanted = numbers(tmp_path / "ckpt"), model.state_dict()
    for name, tensor in here.items():
        ends = name in ("model.embed_tokens.weight", "lm_head.weight")
        allowed = 0.02 if dtype == "int8" or ends else 0.2
        allowed = 1e-3 if tensor.dim() == 1 else allowed
        error = (tensor.float() - wanted[name]).norm() / wanted[name].norm()
        assert error < allowed, name
    assert not inspected(tmp_path / "ckpt").get("problems")


@pytest.mark.parametrize("group", [32, 64, 128])
def test_group_sizes(group: int, hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "ckpt", dtype="int4", group_size=group)
    weights = list(Checkpoint.open(tmp_path / "ckpt").full_tensors())
    kinds = {name: one.kind for name, one in weights if isinstance(one, BlockTensor)}
    assert {kind.inputs for kind in kinds.values()} == {group}
    assert kinds["transformer.layers.1.attention.k.weight"].bits == 4
    assert kinds["lm_head.weight"].bits == kinds["transformer.vocab_embedding.weight"].bits == 8
    if not (described := inspected(tmp_path / "ckpt")):
        return
    shown = described["weight_types"]
    four = shown[INTEGERS["int4"][(32, 64, 128).index(group)]]
    assert four["bits_per_weight"] == 4 + 16 / group
    assert four["tensors"] == 2 * 7
    stored = load_file(tmp_path / "ckpt" / "rank0.safetensors").values()
    assert sum(each["bytes"] for each in shown.values()) == sum(one.nbytes for one in stored)


def test_an_engine_computes_with_the_numbers(hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "ckpt", dtype="int4")
    engines = (
        build_engine(tmp_path / "ckpt", tmp_path / name, BuildSettings(max_seq_len=16),
                     backend="torch", dtype=dtype)
        for name, dtype in (("kept", None), ("plain", "float32"))
    )  # fmt: skip
    logits = [
        filled(
            LlamaModel(
                engine.config.pretrained_config,
                engine.weights(),
                torch.float32,
                torch.device("cpu"),
            ),
            [tuple(prompt) for prompt in PROMPTS],
        )[2]
        for engine in engines
    ]
    assert equal(*logits)


def weight(model: HFModel, name: str) -> torch.Tensor:
    return as_tensor(model.read(name, 0, hf_shapes(model.config)[name][0]))


def outputs(hf: Path, folder: Path) -> float:
    """How far the inputs of a layer lead, squared: what the weighing is for."""
    model = HFModel.open(hf)
    found = mean_squares(hf, model.config, Calibration(PROMPTS))
    here = numbers(folder)
    return sum(
        float(((here[name] - weight(model, name)).square() * as_tensor(squares_)).sum())
        for name, squares_ in found.items()
    )


def test_calibration_lowers_the_error_of_what_it_has_seen(hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "plain", dtype="int4")
    convert(hf, tmp_path / "seen", dtype="int4", calibration=Calibration(PROMPTS))
    assert outputs(hf, tmp_path / "seen") < 0.99 * outputs(hf, tmp_path / "plain")


def test_mean_squares_are_those_of_the_inputs(hf: Path) -> None:
    config = HFModel.open(hf).config
    found = mean_squares(hf, config, Calibration([PROMPTS[0]]))
    names = {name for name, shape in hf_shapes(config).items() if len(shape) == 2}
    assert set(found) == names - {"model.embed_tokens.weight", "lm_head.weight"}
    model = make_model(SMALL)
    embedded = model.model.embed_tokens(torch.tensor(PROMPTS[0]))
    wanted = model.model.layers[0].input_layernorm(embedded).square().mean(0)
    for letter in "qkv":
        own = found[f"model.layers.0.self_attn.{letter}_proj.weight"]
        torch.testing.assert_close(as_tensor(own), wanted.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said", "hint"),
    [
        ({"group_size": 96}, "group size 96 is unknown", "32, 64 or 128"),
        ({"tp_size": 2}, r"blocks \(Q4_0, Q8_0\) are not split", "--tp-size"),
        ({"pp_size": 2}, "pp_size 2", "--pp-size"),
        ({"fp8_kv_cache": True}, "FP8 K/V cache needs scales", "--dtype fp8"),
    ],
)
def test_what_does_not_go_together_is_refused(
    keys: dict[str, Any], said: str, hint: str, hf: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        convert(hf, tmp_path / "out", dtype="int4", **keys)
    assert hint in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sizes", "group", "said", "hint"),
    [
        ({"hidden_size": 128, "intermediate_size": 192}, 128,
         "128 does not divide the 192 inputs of model.layers.0.mlp.down_proj", "--group-size 64"),
        ({"hidden_size": 96, "intermediate_size": 256}, 64,
         "64 does not divide the 96 inputs of model.embed_tokens.weight", "--group-size 32"),
        ({"hidden_size": 80, "intermediate_size": 256}, 32,
         "32 does not divide the 80 inputs of model.embed_tokens.weight", "another --dtype"),
    ],
)  # fmt: skip
def test_a_group_size_that_divides_is_named(
    sizes: dict[str, int], group: int, said: str, hint: str, tmp_path: Path
) -> None:
    odd = Variant("odd", {**sizes, "head_dim": 32})
    folder = save_model(make_model(odd), odd, tmp_path / "hf")
    with pytest.raises(UsageError, match=said) as caught:
        convert(folder, tmp_path / "out", dtype="int8", group_size=group)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_weights_that_have_no_scale_are_named(value: float, hf: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(hf / "model.safetensors")
    tensors[name][7, 5] = value
    folder = save_model(make_model(SMALL), SMALL, tmp_path / "hf")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=re.escape(f"{name} holds {value:.4g}")) as caught:
        convert(folder, tmp_path / "out", dtype="int4")
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
