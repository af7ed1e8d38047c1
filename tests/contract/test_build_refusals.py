"""What is refused before TensorRT-LLM builds, and what is noted, with the stand-in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import standin_engines
from tests.support.standin import EVERY_RELEASE, Standin
from trtla import LLM, LookaheadConfig, TrtlaError, UsageError
from trtla.build.convert import convert
from trtla.build.engine import build_engine, choose_backend, describe_build
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine_limits import BuildSettings
from trtla.trtllm.library import REMOVED
from trtla.trtllm.rules import order_is_right, weight_only_on

LOOKAHEAD = BuildSettings(
    LookaheadConfig(7, 7, 7), max_batch_size=4, max_input_len=64, max_seq_len=128
)
PLAIN = BuildSettings(max_batch_size=4, max_input_len=64, max_seq_len=128)

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")


def build(source: Path, target: Path, settings: BuildSettings = LOOKAHEAD, **choice: Any) -> Any:
    return build_engine(source, target, settings, backend="tensorrt-llm", **choice)


def test_lookahead_in_pipeline_stages_is_refused(
    tiny_checkpoint_tp2_pp2: Path, tmp_path: Path, standin: Standin
) -> None:
    """A pass that generates would crash there: see the stand-in's own test."""
    with pytest.raises(UsageError, match="lookahead does not go with pp_size 2") as caught:
        build(tiny_checkpoint_tp2_pp2, tmp_path / "engine")
    assert caught.value.hint is not None
    for way_out in ("--tp-size", "plain engine", "--backend torch"):
        assert way_out in caught.value.hint
    assert not (tmp_path / "engine").exists()
    theirs = standin_engines.build(standin, tiny_checkpoint_tp2_pp2, tmp_path / "theirs")
    with pytest.raises(UsageError, match="lookahead does not go with pp_size 2"):
        LLM(theirs, lookahead=LookaheadConfig(4, 4, 4))


@EVERY_RELEASE
@pytest.mark.parametrize(
    ("kind", "factor", "reason"),
    [("yarn", 4.0, "is not built"), ("dynamic", 2.0, "cannot be built")],
)
def test_rope_scaling_that_torch_alone_has_is_refused(
    kind: str, factor: float, reason: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """From 1.1 on a build with dynamic ends with KeyError: see the stand-in's own test."""
    source = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    config = json.loads((source / "config.json").read_text())
    config["rotary_scaling"] = {"type": kind, "factor": factor}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=f"rope scaling {kind} {reason}"):
        build(source, tmp_path / "engine")
    longer = 2048 if kind == "yarn" else 128  # four times the trained 512
    settings = BuildSettings(LookaheadConfig(7, 7, 7), max_seq_len=longer)
    engine = build_engine(source, tmp_path / "torch", settings, backend="torch")
    assert engine.config.build_config.max_text_len == longer


@pytest.mark.parametrize("standin", ["0.20.0"], indirect=True)
def test_lookahead_on_the_first_release_is_told_of(tiny_checkpoint: Path) -> None:
    notes = describe_build(tiny_checkpoint, LOOKAHEAD, backend="tensorrt-llm").notes
    assert any("5451" in note for note in notes)


@pytest.mark.parametrize("standin", ["1.3.0rc21"], indirect=True)
def test_a_release_without_the_backend_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert choose_backend("auto")[0] == "torch"
    with pytest.raises(TrtlaError, match=r"TensorRT-LLM 1\.3\.0rc21 lacks") as caught:
        build(tiny_checkpoint, tmp_path / "engine")
    assert caught.value.hint == REMOVED
    assert not (tmp_path / "engine").exists()


def test_more_workers_than_gpus_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers 2 are more than the 1 GPU here"):
        build(tiny_checkpoint, tmp_path / "engine", workers=2)
    assert not (tmp_path / "engine").exists()


def test_no_gpu_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="builds on a GPU, and PyTorch sees none"):
        build(tiny_checkpoint, tmp_path / "engine")


@pytest.mark.parametrize("fake_gpu", ["10.0"], indirect=True)
@pytest.mark.parametrize("dtype", ["w8a16", "w4a16_awq"])
def test_integer_weights_are_refused_on_data_center_blackwell(
    dtype: str, integer_model: Path, tmp_path: Path, standin: Standin
) -> None:
    """The build ends with an error there: see the stand-in's own test."""
    source = convert(integer_model, tmp_path / "ckpt", dtype=dtype)
    said = rf"compute capability 10\.0 has no kernels for {dtype.upper()} weights"
    with pytest.raises(UsageError, match=said):
        build(source, tmp_path / "engine", PLAIN)
    assert not (tmp_path / "engine").exists()
    with pytest.raises(RuntimeError, match="not supported on SM 100"):
        standin_engines.build(standin, source, tmp_path / "theirs", (1, 1, 0))


@pytest.mark.parametrize("fake_gpu", ["12.0", "12.1"], indirect=True)
@pytest.mark.parametrize("dtype", ["w4a16_awq", "w8a16"])
def test_int4_weights_in_another_order_than_the_kernels_read_are_refused(
    dtype: str,
    integer_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GeForce Blackwell reads the order of 8.0; the installed function is asked for both."""
    source = convert(integer_model, tmp_path / "ckpt", dtype=dtype)
    order_is_right.cache_clear()
    assert build(source, tmp_path / "right", PLAIN).backend == "tensorrt-llm"
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_INT4_ORDER", "by capability")
    order_is_right.cache_clear()
    if dtype == "w8a16":
        assert build(source, tmp_path / "wrong", PLAIN).backend == "tensorrt-llm"
        return
    with pytest.raises(UsageError, match="orders W4A16_AWQ weights") as caught:
        build(source, tmp_path / "wrong", PLAIN)
    assert "--backend torch" in str(caught.value.hint)
    order_is_right.cache_clear()


def test_where_the_order_cannot_be_asked_it_is_told(
    integer_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = convert(integer_model, tmp_path / "ckpt", dtype="w4a16_awq")
    config = CheckpointConfig.model_validate_json((source / "config.json").read_text())
    order_is_right.cache_clear()
    monkeypatch.setattr("tensorrt_llm.quantization.functional.preprocess_weights_for_mixed_gemm", 0)
    found = weight_only_on(config, (12, 0))
    order_is_right.cache_clear()
    assert found.allowed is None
    assert "compute capability 12.0" in found.reason


def test_integer_weights_of_padded_sizes_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, standin: Standin
) -> None:
    """The constructor pads 160 to 192, and the tensors do not fit."""
    source = shutil.copytree(tiny_checkpoint, tmp_path / "ckpt")
    config = json.loads((source / "config.json").read_text())
    config["quantization"] = {"quant_algo": "W8A16"}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"160 outputs of mlp\.fc are no multiple of 64"):
        build(source, tmp_path / "engine")
    with pytest.raises(AssertionError, match="not the same shape"):
        standin_engines.build(standin, source, tmp_path / "theirs")


def test_a_list_of_modules_would_have_the_embedding_rounded(
    integer_model: Path, tmp_path: Path, standin: Standin
) -> None:
    """Why W8A16 and W4A16 are written without one."""
    source = convert(integer_model, tmp_path / "ckpt", dtype="w8a16")
    standin_engines.build(standin, source, tmp_path / "fits")
    config = json.loads((source / "config.json").read_text())
    config["quantization"]["exclude_modules"] = ["lm_head"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=r"vocab_embedding\.per_token_scale"):
        standin_engines.build(standin, source, tmp_path / "theirs")


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_blocks_are_refused_and_the_dtypes_for_it_named(
    dtype: str, integer_model: Path, tmp_path: Path
) -> None:
    source = convert(integer_model, tmp_path / "ckpt", dtype=dtype)
    with pytest.raises(UsageError, match="which TensorRT-LLM cannot read") as caught:
        build(source, tmp_path / "engine")
    assert all(name in str(caught.value.hint) for name in ("w4a16_awq", "w8a16", "--backend torch"))


@pytest.mark.parametrize("fake_gpu", ["10.0"], indirect=True)
def test_blackwell_builds_plain_engines_only(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"compute capability 10\.0 is Blackwell"):
        build(tiny_checkpoint, tmp_path / "engine")
    assert build(tiny_checkpoint, tmp_path / "engine", BuildSettings()).backend == "tensorrt-llm"
