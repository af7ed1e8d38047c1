"""Weights in blocks: from a GGUF file to an engine bit by bit, and what does not take them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.compiled import filled
from tests.support.fp8_models import PROMPTS
from tests.support.gguf_models import SIZES, TIED, mixed, model_of, quantized, state, write_gguf
from tests.support.models import Variant
from tests.support.tensors import equal
from trtla.build.convert import convert
from trtla.build.engine import build_engine, describe_build
from trtla.build.quantize import Calibration
from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockTensor
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import BLOCK_SIZES
from trtla.formats.engine import Engine, engine_from_hugging_face
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.gguf.folder import model_folder
from trtla.formats.tensors import without_blocks
from trtla.runtime.models.llama import LlamaModel

KINDS = [name for name in BLOCK_SIZES if "_G" not in name]
OPEN = Variant("untied", SIZES)


@pytest.fixture(scope="module", params=KINDS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "model.gguf"
    return write_gguf(model_of(TIED), path, mixed(request.param))


@pytest.fixture
def q4(tmp_path: Path) -> Path:
    return write_gguf(model_of(TIED), tmp_path / "model.gguf", "Q4_1")


def built(source: Path, target: Path, **keys: Any) -> Engine:
    return build_engine(source, target, BuildSettings(max_seq_len=16), backend="torch", **keys)


def blocks_of(engine: Engine | Checkpoint) -> dict[str, tuple[str, torch.Tensor]]:
    found = engine.weights() if isinstance(engine, Engine) else engine.full_tensors()
    return {n: (w.kind.name, w.rows) for n, w in found if isinstance(w, BlockTensor)}


def test_every_block_of_a_file_is_in_the_engine_as_it_was(file: Path, tmp_path: Path) -> None:
    convert(file, tmp_path / "ckpt")
    built(tmp_path / "ckpt", tmp_path / "engine")
    here = blocks_of(built(file, tmp_path / "direct"))
    assert len(here) == 1 + 2 * 7
    for other in (
        blocks_of(Checkpoint.open(tmp_path / "ckpt")),
        blocks_of(built(tmp_path / "ckpt", tmp_path / "again")),
        blocks_of(engine_from_hugging_face(model_folder(file))),
    ):
        assert here.keys() == other.keys()
        for name, (kind, rows) in here.items():
            assert kind == other[name][0]
            assert equal(rows, other[name][1])
    written = load_file(tmp_path / "engine" / "rank0.safetensors")
    assert all(equal(rows, written[name]) for name, (_, rows) in here.items())


def test_blocks_are_those_of_the_files_rows(file: Path, tmp_path: Path) -> None:
    """q, whose rows change places, and a weight whose rows do not."""
    model = model_of(TIED)
    here = blocks_of(built(file, tmp_path / "engine"))
    for own, theirs in (("attention.q", "self_attn.q_proj"), ("mlp.fc", "mlp.gate_proj")):
        kind, rows = here[f"transformer.layers.1.{own}.weight"]
        values = model.state_dict()[f"model.layers.1.{theirs}.weight"].numpy()
        if BLOCK_TYPES[kind].inputs == 32:  # the library writes no others
            assert equal(rows, torch.from_numpy(quantized(values, kind)[0]))


@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_the_gguf_package(name: str) -> None:
    kind, draw = BLOCK_TYPES[name], np.random.default_rng(0)
    blocks = draw.integers(0, 256, (20, 3, kind.nbytes), np.uint8)
    for place in kind.halves:  # any bits but those of infinities and what is no number
        blocks[..., place + 1] &= 0xBF
    if not kind.halves:
        blocks[..., 0] %= 253
    rows = blocks.reshape(20, -1)
    wanted = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    assert np.array_equal(BlockTensor(kind, rows).dequantize(), wanted)


@pytest.mark.parametrize("variant", [TIED, OPEN], ids=lambda one: one.name)
def test_logits_are_those_of_the_dequantised_model(variant: Variant, tmp_path: Path) -> None:
    file = write_gguf(model_of(variant), tmp_path / "m.gguf", mixed("Q4_1"))
    kept, plain = built(file, tmp_path / "kept"), built(file, tmp_path / "plain", dtype="float32")
    assert blocks_of(kept)
    assert not blocks_of(plain)
    one, other = (
        LlamaModel(
            engine.config.pretrained_config, engine.weights(), torch.float32, torch.device("cpu")
        )
        for engine in (kept, plain)
    )
    prompts = [tuple(prompt) for prompt in PROMPTS]
    assert equal(filled(one, prompts)[2], filled(other, prompts)[2])
    assert json.loads((tmp_path / "kept" / "config.json").read_text())["pretrained_config"][
        "quantization"
    ]["block_types"]


def test_an_explicit_dtype_dequantises(q4: Path, tmp_path: Path) -> None:
    """From the file and from a checkpoint with its blocks, to the same bytes."""
    convert(q4, tmp_path / "plain", dtype="bfloat16")
    convert(q4, tmp_path / "ckpt")
    built(tmp_path / "ckpt", tmp_path / "engine", dtype="bfloat16")
    memory = engine_from_hugging_face(model_folder(q4), dtype="bfloat16")
    plain, engine = (load_file(tmp_path / n / "rank0.safetensors") for n in ("plain", "engine"))
    weights = dict(memory.weights())
    assert plain.keys() == engine.keys() == weights.keys()
    for name, tensor in plain.items():
        assert tensor.dtype == torch.bfloat16
        assert equal(tensor, engine[name])
        assert equal(tensor, weights[name])  # type: ignore[arg-type]
    assert "block_types" not in (tmp_path / "plain" / "config.json").read_text()


def test_q_k_and_v_are_fused_where_numbers_are_needed(q4: Path) -> None:
    engine = engine_from_hugging_face(model_folder(q4), dtype="float32")
    blocks = engine_from_hugging_face(model_folder(q4))
    plain = dict(without_blocks(blocks.weights(), np.dtype(np.float32)))
    for name, tensor in engine.weights():
        assert equal(plain[name].astype(np.float32), tensor)  # type: ignore[arg-type]


def test_the_memory_of_a_dry_run_is_that_of_the_blocks(q4: Path, tmp_path: Path) -> None:
    built(q4, tmp_path / "engine")
    stored = load_file(tmp_path / "engine" / "rank0.safetensors").values()
    shown = describe_build(q4, BuildSettings(max_seq_len=16), backend="torch")
    assert shown.memory.weight_bytes == sum(tensor.nbytes for tensor in stored)


def test_other_types_are_dequantised_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {"blk.0.ffn_down.weight": "TQ1_0", "blk.1.ffn_down.weight": "IQ3_S"}
    model = model_of(TIED)
    file = write_gguf(model, tmp_path / "m.gguf", lambda name: kinds.get(name, "Q8_0"))
    with caplog.at_level(logging.WARNING, "trtla"):
        convert(file, tmp_path / "ckpt")
        kept = blocks_of(Checkpoint.open(tmp_path / "ckpt"))
    said = [record.getMessage() for record in caplog.records]
    assert said == ["note: m.gguf: weights of type IQ3_S, TQ1_0 are dequantised"]
    assert "transformer.layers.0.mlp.fc.weight" in kept
    stored = load_file(tmp_path / "ckpt" / "rank0.safetensors")
    down = stored["transformer.layers.0.mlp.proj.weight"]
    array = state(model)["blk.0.ffn_down.weight"]
    wanted = torch.from_numpy(gguf.dequantize(*quantized(array, "TQ1_0")))
    assert equal(down, wanted.bfloat16())


def test_blocks_are_not_split_over_ranks(q4: Path, tmp_path: Path) -> None:
    for keys in ({"tp_size": 2}, {"pp_size": 2}):
        with pytest.raises(UsageError, match=r"weights in blocks \(Q4_1\) are not split"):
            convert(q4, tmp_path / "ckpt", **keys)  # type: ignore[arg-type]
    convert(q4, tmp_path / "ckpt", tp_size=2, dtype="float16")


def test_tensorrt_llm_is_refused(q4: Path, tmp_path: Path) -> None:
    convert(q4, tmp_path / "ckpt")
    for source in (q4, tmp_path / "ckpt"):
        with pytest.raises(UsageError, match=r"blocks \(Q4_1\), which TensorRT-LLM") as caught:
            describe_build(source, BuildSettings(), backend="tensorrt-llm")
        assert "--dtype bfloat16" in str(caught.value.hint)
        described = describe_build(
            source, BuildSettings(), backend="tensorrt-llm", dtype="bfloat16"
        )
        assert described.dtype == "bfloat16"


def test_nothing_is_quantised_twice(q4: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{q4} is quantised already .*Q4_1") as caught:
        convert(q4, tmp_path / "ckpt", calibration=Calibration(PROMPTS))
    assert "unquantised" in str(caught.value.hint)


NAME = "transformer.layers.1.mlp.fc.weight"
HF_NAME = "model.layers.1.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({HF_NAME: "Q9_9"}, "is 'Q9_9', not one of Q8_0"),
        ({"model.layers.7.mlp.gate_proj.weight": "Q4_1"}, "is no weight of the model"),
        ({"model.norm.weight": "Q8_0"}, "is no weight of the model"),
        ({HF_NAME: "Q8_0"}, rf"{NAME} has shape \[512, 160\], config.json asks for \[512, 272\]"),
        ({HF_NAME: None}, "block_types"),
        (
            {"lm_head.weight": "Q8_0"},
            "lm_head.weight is Q8_0, but the files hold only the embedding",
        ),
        ({"hidden_size": 200}, r"the 200 inputs of .* are no multiple of 32"),
    ],
)
def test_block_types_that_do_not_fit_are_named(
    types: dict[str, Any], said: str, q4: Path, tmp_path: Path
) -> None:
    folder = convert(q4, tmp_path / "ckpt")
    data = json.loads((folder / "config.json").read_text())
    changed = dict(types)
    data["hidden_size"] = changed.pop("hidden_size", data["hidden_size"])
    data["quantization"]["block_types"].update(changed)
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=said) as caught:
        Checkpoint.open(folder)
    assert caught.value.hint


def test_blocks_of_another_type_in_the_file_are_named(q4: Path, tmp_path: Path) -> None:
    folder = convert(q4, tmp_path / "ckpt")
    tensors = load_file(folder / "rank0.safetensors")
    tensors[NAME] = tensors[NAME].view(torch.int8)
    save_file(tensors, folder / "rank0.safetensors")
    with pytest.raises(UsageError, match=f"{NAME} is int8, trtla reads uint8, the blocks of Q4_1"):
        Checkpoint.open(folder)
