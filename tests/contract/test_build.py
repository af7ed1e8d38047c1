"""Builds with the stand-in: the same engines as trtllm-build makes, on every release.

The stand-in shows that trtla keeps its side of TensorRT-LLM's contract, and nothing about the real
library.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import Variant, by_hand, make_model, save_model
from tests.support.standin import EVERY_RELEASE, Standin
from tests.support.standin_engines import config_of, printed_command, reference, run_printed_command
from tests.support.standin_requests import PROMPT, request
from trtla import LookaheadConfig, TrtlaError
from trtla.build.convert import convert
from trtla.build.engine import build_engine, describe_build
from trtla.build.quantize import Calibration
from trtla.formats.engine import Engine, open_engine
from trtla.formats.engine_config import EngineManifest
from trtla.formats.engine_limits import BuildSettings
from trtla.llm.open import open_executor
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.trtllm.build import adopt_engine

LOOKAHEAD = BuildSettings(
    LookaheadConfig(7, 7, 7), max_batch_size=4, max_input_len=64, max_seq_len=128
)
PLAIN = BuildSettings(max_batch_size=4, max_input_len=64, max_seq_len=128)

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")


@pytest.fixture
def two_gpus(fake_gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def build(source: Path, target: Path, settings: BuildSettings = LOOKAHEAD, **choice: Any) -> Any:
    return build_engine(source, target, settings, backend="tensorrt-llm", **choice)


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def engines_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("rank*.engine"))}


def built_both_ways(
    source: Path, folder: Path, settings: BuildSettings = LOOKAHEAD, **choice: Any
) -> Path:
    """trtla's engine, which is that of the printed command."""
    ours = Path(build(source, folder / "ours", settings, **choice).path)
    theirs = run_printed_command(source, folder / "theirs", settings)
    assert config_of(ours) == config_of(theirs)
    assert engines_of(ours) == engines_of(theirs)
    return ours


def decoded(engine: Engine) -> list[int]:
    with open_executor(engine, ExecutorOptions()) as executor:
        executor.submit(request(0))
        outputs = [output for step in iter(executor.poll, []) for output in step]
    return [token for output in outputs for token in output.new_tokens]


@EVERY_RELEASE
@pytest.mark.parametrize("triple", [(7, 7, 7), (1, 1, 0)])
def test_the_engine_is_the_one_of_the_printed_command(
    triple: tuple[int, int, int], standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    settings = BuildSettings(
        LookaheadConfig(*triple), max_batch_size=4, max_input_len=64, max_num_tokens=100
    )
    ours = built_both_ways(tiny_checkpoint, tmp_path, settings)
    assert config_of(ours)["version"] == standin.version
    step = 4 * settings.lookahead.max_decoding_tokens
    assert config_of(ours)["build_config"]["opt_num_tokens"] == step, "what TensorRT tunes for"


@EVERY_RELEASE
def test_an_engine_tells_all_about_itself(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    engine = build(tiny_checkpoint, tmp_path / "out" / "engine", sources={"lookahead": "flag"})
    assert engine.backend == "tensorrt-llm"
    assert engine.lookahead == LOOKAHEAD.lookahead
    limits = engine.config.build_config
    assert (limits.max_draft_len, limits.max_seq_len, limits.max_num_tokens) == (83, 211, 512)
    assert limits.plugin_config["gpt_attention_plugin"] == "float16"
    assert limits.plugin_config["use_paged_context_fmha"] is True
    manifest = engine.manifest
    assert isinstance(manifest, EngineManifest)
    assert manifest.tensorrt_llm_version == standin.version
    assert manifest.compute_capability == "9.0"
    assert manifest.settings == {"lookahead": "flag"}
    names = {"config.json", "trtla.json", "rank0.engine"}
    assert names <= {path.name for path in engine.path.iterdir()}
    assert engine.tokenizer_dir == engine.path
    assert engine.end_ids() == {257}
    assert [path.name for path in engine.path.parent.iterdir()] == ["engine"]


@pytest.mark.deep
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("two_gpus")
def test_several_ranks_with_several_workers(
    workers: int, tiny_checkpoint_tp2_pp2: Path, tmp_path: Path
) -> None:
    ours = built_both_ways(tiny_checkpoint_tp2_pp2, tmp_path, PLAIN, workers=workers)
    assert list(engines_of(ours)) == [f"rank{rank}.engine" for rank in range(4)]
    plan = describe_build(tiny_checkpoint_tp2_pp2, PLAIN, backend="tensorrt-llm")
    assert set(plan.files) == {path.name for path in ours.iterdir()}


def test_a_hugging_face_folder_is_converted_on_the_way(
    tiny_model: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    ours = build(tiny_model, tmp_path / "model-engine", dtype="float16")
    theirs = build(tiny_checkpoint, tmp_path / "engine")
    assert config_of(ours.path) == config_of(theirs.path)
    assert engines_of(ours.path) == engines_of(theirs.path)
    assert ours.manifest.source_sha256 == theirs.manifest.source_sha256
    assert not (ours.path / "checkpoint").exists()


def test_another_dtype_is_converted_on_the_way(tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tiny_checkpoint.iterdir()}
    engine = build(tiny_checkpoint, tmp_path / "engine", dtype="bfloat16")
    assert engine.config.pretrained_config.dtype == "bfloat16"
    assert engine.config.build_config.plugin_config["gemm_plugin"] == "bfloat16"
    assert {path: path.read_bytes() for path in tiny_checkpoint.iterdir()} == before


@pytest.mark.deep
def test_the_printed_command_runs_in_a_shell(tiny_checkpoint: Path, tmp_path: Path) -> None:
    ours = build(tiny_checkpoint, tmp_path / "ours").path
    done = run(printed_command(tiny_checkpoint, tmp_path / "theirs", LOOKAHEAD), tmp_path)
    assert done.returncode == 0, done.stderr
    assert config_of(ours) == config_of(tmp_path / "theirs")


@EVERY_RELEASE
@pytest.mark.parametrize("kv_cache", [False, True])
def test_fp8_checkpoints_keep_the_plugins_in_the_activations_dtype(
    kv_cache: bool, tiny_model: Path, tmp_path: Path
) -> None:
    calibration = Calibration([list(range(40))])
    source = convert(tiny_model, tmp_path / "fp8", calibration=calibration, fp8_kv_cache=kv_cache)
    ours = built_both_ways(source, tmp_path)
    plugins = config_of(ours)["build_config"]["plugin_config"]
    assert plugins["gemm_plugin"] == plugins["gpt_attention_plugin"] == "float16"
    assert plugins["use_fp8_context_fmha"] is kv_cache
    notes = describe_build(source, LOOKAHEAD, backend="tensorrt-llm").notes
    assert any("switches FP8 context FMHA off" in note for note in notes) is not kv_cache


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dtype", ["w4a16_awq", "w8a16", "w4a16"])
def test_integer_weights_need_no_setting_of_a_plugin(
    dtype: str, tp: int, integer_model: Path, tmp_path: Path
) -> None:
    groups = {"group_size": 64} if dtype == "w4a16_awq" else {}
    source = convert(integer_model, tmp_path / "ckpt", dtype=dtype, tp_size=tp, **groups)
    ours = built_both_ways(source, tmp_path)
    plugins = config_of(ours)["build_config"]["plugin_config"]
    kinds = ("weight_only_groupwise_quant_matmul_plugin", "weight_only_quant_matmul_plugin")
    wanted = ("float16", None) if groups else (None, "float16")
    assert tuple(plugins[kind] for kind in kinds) == wanted, "build() chooses it"
    notes = describe_build(source, LOOKAHEAD, backend="tensorrt-llm").notes
    rounds = f"TensorRT-LLM rounds the linear weights to int{dtype[1]} as it loads them"
    assert (rounds in notes) is not bool(groups)


@EVERY_RELEASE
def test_int4_weights_give_the_text_of_their_numbers(integer_model: Path, tmp_path: Path) -> None:
    source = convert(integer_model, tmp_path / "ckpt", dtype="w4a16_awq", group_size=64)
    wanted = reference(by_hand(source, tmp_path / "plain"), PROMPT, 16)
    assert decoded(build(source, tmp_path / "ours")) == wanted
    assert wanted != reference(convert(integer_model, tmp_path / "whole"), PROMPT, 16)


@EVERY_RELEASE
def test_qwen2_is_built_by_its_own_class_and_has_no_bias_behind_attention(tmp_path: Path) -> None:
    keys = {"head_dim": 64, "vocab_size": 258, "max_position_embeddings": 512}
    variant = Variant("qwen2", keys, family="qwen2")
    source = convert(save_model(make_model(variant), variant, tmp_path / "hf"), tmp_path / "ckpt")
    ours = built_both_ways(source, tmp_path)
    written = config_of(ours)["pretrained_config"]
    assert (written["qwen_type"], written["attn_bias"]) == ("qwen2", True)
    assert decoded(open_engine(ours)) == reference(source, PROMPT, 16)


def test_the_timing_cache_stays_nowhere(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = importlib.import_module("tensorrt_llm.builder")
    make = builder.build

    def build_and_cache(model: Any, config: Any) -> Any:
        Path(config.output_timing_cache).write_bytes(b"timings")  # as builder.py does for rank 0
        return make(model, config)

    monkeypatch.setattr(builder, "build", build_and_cache)
    monkeypatch.chdir(tmp_path)
    engine = build(tiny_checkpoint, tmp_path / "engine")
    assert [path.name for path in tmp_path.glob("*.cache")] == []
    assert [path.name for path in engine.path.glob("*.cache")] == []


@pytest.mark.deep
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_deprecations_are_shown_once_and_never_fatal(
    flags: list[str], tiny_checkpoint_tp2: Path, tmp_path: Path
) -> None:
    strict = [
        part for name in ("Deprecation", "Future") for part in ("-W", f"error::{name}Warning")
    ]
    done = run(
        [
            *(sys.executable, *strict, "-m", "trtla", "build", "--backend", "tensorrt-llm"),
            *("--checkpoint-dir", str(tiny_checkpoint_tp2), "--output-dir", "engine"),
            *("--lookahead", "4,3,4", "--max-batch-size", "1", *flags),
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for caller in ("builder.build()", "LLaMAForCausalLM.from_checkpoint"):
        assert done.stderr.count(f"DEPRECATION WARNING: {caller}") == 1
    assert "note: build() raises max_seq_len 512 by max_draft_len 15 to 527" in done.stderr
    if not flags:
        assert "wrote engine" in done.stdout
        return
    written = json.loads(done.stdout)  # the library's banner is not in it
    assert written["lookahead"] == [4, 3, 4]
    assert written["max_draft_len"] == 15
    assert len(written["notes"]) == 2


def test_a_failing_rank_leaves_nothing(
    tiny_checkpoint_tp2_pp2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: Standin
) -> None:
    models = standin.load("models")
    load = models.LLaMAForCausalLM.from_checkpoint

    def broken(folder: str, config: Any) -> Any:
        if config.mapping.rank == 2:
            raise RuntimeError("Required but not provided tensors:{'x'}")
        return load(folder, config=config)

    monkeypatch.setattr(models.LLaMAForCausalLM, "from_checkpoint", broken)
    with pytest.raises(TrtlaError, match="rank 2: RuntimeError: Required but not provided"):
        build(tiny_checkpoint_tp2_pp2, tmp_path / "out" / "engine", PLAIN)
    assert not (tmp_path / "out").exists()


@pytest.mark.deep
@pytest.mark.usefixtures("two_gpus")
def test_a_rank_that_fails_in_a_worker_leaves_nothing(
    tiny_checkpoint_tp2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_GPU", "10.0")  # the workers' GPU, not this process's
    with pytest.raises(TrtlaError, match=r"rank [01]: RuntimeError: TRTLLM-GEN does not support"):
        build(tiny_checkpoint_tp2, tmp_path / "out" / "engine", workers=2)
    assert not (tmp_path / "out").exists()


def test_an_engine_that_came_out_otherwise_is_not_kept(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: Standin
) -> None:
    builder = standin.load("builder")
    make = builder.build

    def halve(model: Any, config: Any) -> Any:
        engine = make(model, config)
        engine.config.build_config.max_num_tokens //= 2
        return engine

    monkeypatch.setattr(builder, "build", halve)
    with pytest.raises(TrtlaError, match=r"wrote max_num_tokens 256 .* planned was 512"):
        build(tiny_checkpoint, tmp_path / "out" / "engine")
    assert not (tmp_path / "out").exists()


def test_auto_takes_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    engine = build_engine(tiny_checkpoint, tmp_path / "engine", LOOKAHEAD)
    assert engine.backend == "tensorrt-llm"


@EVERY_RELEASE
def test_an_engine_of_trtllm_build_is_adopted(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = run_printed_command(tiny_checkpoint, tmp_path / "engine", LOOKAHEAD)
    assert open_engine(folder).lookahead is None
    adopted = adopt_engine(folder, LOOKAHEAD.lookahead, tokenizer=tiny_checkpoint)
    assert adopted.lookahead == LOOKAHEAD.lookahead
    assert adopted.manifest is not None
    assert adopted.manifest.tensorrt_llm_version == standin.version
    plain = run_printed_command(tiny_checkpoint, tmp_path / "plain", BuildSettings())
    assert open_engine(plain).lookahead == AUTOREGRESSIVE
    assert os.listdir(tmp_path / "work") in ([], ["model.cache"])
