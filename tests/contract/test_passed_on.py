"""Settings that are handed on to TensorRT-LLM by its own names, on the stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import refused, there, trtla
from tests.support.gguf_models import write_gguf
from tests.support.models import Variant, make_model
from tests.support.standin import Standin
from tests.support.standin_engines import config_of, run_printed_command
from tests.support.standin_requests import Engines, drain, request
from trtla import LLM, LookaheadConfig, UsageError
from trtla.build.engine import build_engine
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.llm.open import open_executor
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.trtllm.start import executor_config

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")
ASKED = ("weight_streaming=true", "gemm_plugin=auto", "plugin_config.use-fused-mlp=disable")
LIMITS = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 128}
EVERY_RELEASE = pytest.mark.parametrize("standin", ["0.20.0", "1.0.0", "1.2.1"], indirect=True)


def build(source: Path, target: Path, *asked: str, **choice: Any) -> Path:
    settings = BuildSettings(LookaheadConfig(4, 4, 4), **LIMITS, trtllm=asked, **choice)
    return build_engine(source, target, settings, backend="tensorrt-llm").path


@EVERY_RELEASE
def test_the_builder_gets_what_it_is_asked(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = build(tiny_checkpoint, tmp_path / "engine", *ASKED)
    written = json.loads((folder / "config.json").read_text())["build_config"]
    assert written["weight_streaming"] is True
    assert written["plugin_config"]["use_fused_mlp"] is False
    assert written["plugin_config"]["gemm_plugin"] == "auto"
    assert json.loads((folder / "trtla.json").read_text())["trtllm"] == {
        "weight_streaming": True,
        "plugin_config.gemm_plugin": "auto",
        "plugin_config.use_fused_mlp": False,
    }
    with open_executor(open_engine(folder)) as executor:
        executor.submit(request(0))
        assert drain(executor)[0].finish_reason == "length"


def test_a_dry_run_shows_it_and_the_command_has_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    asked = ("build", "--checkpoint-dir", tiny_checkpoint, "--output-dir", tmp_path / "engine")
    given = (*asked, "--backend", "tensorrt-llm", "--lookahead", "4,4,4", "--trtllm", *ASKED)
    ran = trtla(*given, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    shown = plan["settings"]["trtllm plugin_config.use_fused_mlp"]
    assert shown == {"value": False, "from": "flag"}
    (command,) = plan["commands"]
    for part in ("--use_fused_mlp disable", "--gemm_plugin auto", "--weight_streaming"):
        assert part in command
    assert trtla(*given).code == 0
    no_flag = trtla(*given, "strongly_typed=true", "--dry-run", "--json")
    assert json.loads(no_flag.out)["commands"] == []


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("weight_streming=true", ("weight_streming", "did you mean weight_streaming?")),
        ("plugin_config.gem_plugin=fp8", ("did you mean plugin_config.gemm_plugin?",)),
        ("weight_streaming", ("no KEY=VALUE",)),
        ("weight_streaming=perhaps", ("weight_streaming=perhaps is not true or false",)),
        ("opt_num_tokens=many", ("opt_num_tokens=many is not a whole number",)),
        ("gemm_plugin=fp9", ("is not one of auto, float16",)),
        ("max_draft_len=5", ("max_draft_len is not free", "--lookahead")),
        ("speculative_decoding_mode=8", ("--lookahead",)),
        ("paged_kv_cache=false", ("plugin_config.paged_kv_cache is not free",)),
        ("lora_config=x", ("lora_config", "plain value")),
    ],
)
def test_what_the_builder_cannot_be_asked_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, asked: str, parts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        build(tiny_checkpoint, tmp_path / "engine", asked)
    said = f"{caught.value.message} {caught.value.hint}"
    assert all(part in said for part in parts), said
    assert not (tmp_path / "engine").exists()


def test_a_field_that_only_the_library_knows_is_handed_on(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = build(tiny_checkpoint, tmp_path / "engine", "fuse_fp4_quant=false")
    asked = json.loads((folder / "trtla.json").read_text())["trtllm"]
    assert asked == {"plugin_config.fuse_fp4_quant": False}


def test_the_timing_cache_is_read_and_written(tiny_checkpoint: Path, tmp_path: Path) -> None:
    cache = tmp_path / "kernels.cache"
    for count in (1, 2):
        folder = build(tiny_checkpoint, tmp_path / f"engine{count}", timing_cache=cache)
        assert cache.read_text() == "measured\n" * count
        assert not (folder / "model.cache").exists()


def test_a_torch_engine_has_none_of_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    settings = BuildSettings(**LIMITS, trtllm=ASKED)
    with pytest.raises(UsageError, match="trtllm is for TensorRT-LLM"):
        build_engine(tiny_checkpoint, tmp_path / "engine", settings, backend="torch")
    build_engine(tiny_checkpoint, tmp_path / "engine", BuildSettings(**LIMITS), backend="torch")
    settings_of = TrtllmSettings(trtllm_executor=("max_queue_size=5",))
    with pytest.raises(UsageError, match="which has no settings of TensorRT-LLM"):
        LLM(tmp_path / "engine", trtllm=settings_of)


@EVERY_RELEASE
def test_the_executor_gets_what_it_is_asked(standin: Standin) -> None:
    bindings = standin.load("bindings.executor")
    asked = TrtllmSettings(
        trtllm_executor=(
            "kv_cache_config.max_tokens=4096",
            "max_attention_window=512,512",
            "enable_context_fmha_fp32_acc=true",
            "extended_runtime_perf_knob_config.cuda_graph_mode=true",
            "scheduler_config.context_chunking_policy=equal_progress",
            "enable_batch_size_tuning=true",
            "enable_max_num_tokens_tuning=false",
            "dynamic_batch_moving_average_window=64",
            "device_ids=0",
            "gpu_weights_percent=0.5",
            "max_queue_size=7",
        ),
        scheduler_policy="static_batch",
    )
    config = executor_config(bindings, AUTOREGRESSIVE, 4, asked)
    cache, knobs = config.kv_cache_config, config.extended_runtime_perf_knob_config
    assert (cache.max_tokens, cache.max_attention_window) == (4096, [512, 512])
    assert cache.enable_block_reuse is False, "what trtla sets stays"
    assert (knobs.enable_context_fmha_fp32_acc, knobs.cuda_graph_mode) == (True, True)
    scheduler = config.scheduler_config
    assert scheduler.context_chunking_policy == bindings.ContextChunkingPolicy.EQUAL_PROGRESS
    assert scheduler.capacity_scheduler_policy == bindings.CapacitySchedulerPolicy.STATIC_BATCH
    assert scheduler.dynamic_batch_config.dynamic_batch_moving_average_window == 64
    assert config.parallel_config.device_ids == [0]
    assert (config.gpu_weights_percent, config.max_queue_size) == (0.5, 7)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("kv_cache_config.max_token=5", ("did you mean kv_cache_config.max_tokens?",)),
        ("max_batch_size=5", ("--max-batch-size",)),
        ("free_gpu_memory_fraction=0.5", ("--kv-cache-free-gpu-memory-fraction",)),
        ("decoding_config=x", ("--lookahead",)),
        ("max_num_tokens=0", ("max_num_tokens=0", "refuses it")),
        ("enable_batch_size_tuning=true", ("enable_batch_size_tuning", "refuses it")),
    ],
)
def test_what_the_executor_cannot_be_asked_is_refused(
    engine: Engines, asked: str, parts: tuple[str, ...]
) -> None:
    options = ExecutorOptions(trtllm=TrtllmSettings(trtllm_executor=(asked,)))
    with pytest.raises(UsageError) as caught:
        open_executor(open_engine(engine()), options)
    said = f"{caught.value.message} {caught.value.hint}"
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("standin", ["0.20.0"], indirect=True)
def test_a_setting_of_later_releases_is_refused_by_name(engine: Engines) -> None:
    asked = ("attention_dp_events_gather_period_ms=5",)
    options = ExecutorOptions(trtllm=TrtllmSettings(trtllm_executor=asked))
    with pytest.raises(UsageError, match="attention_dp_events_gather_period_ms"):
        open_executor(open_engine(engine()), options)


def test_fewer_tokens_in_a_step_bound_the_prompts(engine: Engines) -> None:
    options = ExecutorOptions(trtllm=TrtllmSettings(trtllm_executor=("max_num_tokens=40",)))
    with open_executor(open_engine(engine(1, 1, 0)), options) as executor:
        assert executor.limits.max_input_len == 40


def test_the_flag_is_there_for_commands(engine: Engines, tiny_model: Path) -> None:
    asked = ("run", "-m", engine(), "--tokenizer-dir", tiny_model, "--input-text", "abcdefgh")
    length = ("--max-output-len", "4")
    ran = trtla(*asked, *length, "--trtllm-executor", "max_queue_size=5", "cuda_graph_mode=false")
    assert ran.code == 0, ran.err
    refused(trtla(*asked, "--trtllm-executor", "max_queue=5"), 2, "max_queue", "max_queue_size?")
    for command in there("serve", "batch"):
        assert "--trtllm-executor" in trtla(command, "--help-all").out


def test_the_engine_with_it_is_the_one_of_the_printed_command(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    asked = (*ASKED, "use_strip_plan=true", "tokens_per_block=64", "low_latency_gemm_plugin=none")
    asked += ("multiple_profiles=true", "weight_sparsity=true")
    ours = build(tiny_checkpoint, tmp_path / "ours", *asked)
    settings = BuildSettings(LookaheadConfig(4, 4, 4), **LIMITS, trtllm=asked)
    theirs = run_printed_command(tiny_checkpoint, tmp_path / "theirs", settings)
    assert config_of(ours) == config_of(theirs)


def test_the_commands_for_a_gguf_file_begin_with_its_conversion_here(tmp_path: Path) -> None:
    """Its folder among trtla's files has no weights that convert_checkpoint.py could read."""
    file = write_gguf(make_model(Variant("gqa", {"head_dim": 64})), tmp_path / "model.gguf", "F16")
    asked = ("build", "--checkpoint-dir", file, "--output-dir", tmp_path / "engine")
    ran = trtla(*asked, "--backend", "tensorrt-llm", "--dtype", "float16", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    convert, compile_ = json.loads(ran.out)["commands"]
    checkpoint = tmp_path / "engine-checkpoint"
    assert convert == f"trtla convert --model-dir {file} --output-dir {checkpoint} --dtype float16"
    assert f"--checkpoint_dir {checkpoint}" in compile_
