"""What TensorRT-LLM's executor is started with and when it is not; the limits that follow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import standin_engines
from tests.support.standin import Standin
from tests.support.standin_requests import Engines, drain, request
from trtla import TrtlaError, UsageError
from trtla.build.engine import build_engine
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.llm.open import open_executor
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")


def test_an_engine_without_a_known_triple_is_not_started(engine: Engines) -> None:
    """C++ would take (4,3,4) and fail with an assertion on sizes."""
    with pytest.raises(UsageError, match="max_draft_len 23") as refusal:
        open_executor(open_engine(engine(bare=True)))
    assert refusal.value.hint is not None
    assert "4,4,4" in refusal.value.hint
    with open_executor(
        open_engine(engine(bare=True)), ExecutorOptions(lookahead=LookaheadConfig(4, 4, 4))
    ) as works:
        works.submit(request(0))
        assert drain(works)[0].finish_reason == "length"


def test_the_configuration_says_what_changed_between_releases(standin: Standin) -> None:
    bindings = standin.load("bindings.executor")
    from trtla.trtllm.start import executor_config

    config = executor_config(bindings, LookaheadConfig(7, 7, 7), 8, TrtllmSettings())
    assert config.decoding_config.decoding_mode.isLookahead()
    triple = config.decoding_config.lookahead_decoding_config
    assert triple.calculate_speculative_resource()[2] == 83
    assert config.enable_chunked_context is False
    assert config.kv_cache_config.enable_block_reuse is False
    assert config.kv_cache_config.free_gpu_memory_fraction == pytest.approx(0.9)
    assert config.max_beam_width == 1
    assert config.max_batch_size == 8
    policy = config.scheduler_config.capacity_scheduler_policy
    assert policy == bindings.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    assert config.batching_type == bindings.BatchingType.INFLIGHT
    plain = executor_config(bindings, AUTOREGRESSIVE, 8, TrtllmSettings())
    assert plain.decoding_config is None
    changed = TrtllmSettings(0.5, True, True, "max_utilization")
    config = executor_config(bindings, AUTOREGRESSIVE, 8, changed)
    assert config.fail_fast_on_attention_window_too_large is True
    assert config.kv_cache_config.enable_block_reuse is True
    assert config.enable_chunked_context is True
    policy = config.scheduler_config.capacity_scheduler_policy
    assert policy == bindings.CapacitySchedulerPolicy.MAX_UTILIZATION


def test_a_smaller_max_seq_len_than_the_engines_limits_requests(engine: Engines) -> None:
    folder = engine(4, 4, 4)
    with open_executor(open_engine(folder), ExecutorOptions(max_seq_len=40)) as executor:
        assert (executor.limits.max_input_len, executor.limits.max_text_len) == (39, 40)
        with pytest.raises(UsageError) as refusal:
            executor.submit(request(0, tuple(range(40))))
        assert "open the model with a larger max_seq_len, at most 128" in str(refusal.value)
        executor.submit(request(1, tuple(range(24))))
        assert drain(executor)[1].finish_reason == "length"
    with pytest.raises(UsageError, match="max_seq_len 129 is above the 128 that"):
        open_executor(open_engine(folder), ExecutorOptions(max_seq_len=129))


def test_what_max_utilization_could_not_restart_is_refused(engine: Engines) -> None:
    """A streamed request that is evicted starts again with all its text as the prompt."""
    small = {"max_batch_size": 1, "max_num_tokens": 64}
    tight = TrtllmSettings(scheduler_policy="max_utilization")
    for triple, chunks in (((4, 4, 4), False), ((1, 1, 0), True)):
        folder = engine(*triple, **small)
        with open_executor(open_engine(folder), ExecutorOptions(trtllm=tight)) as executor:
            assert executor.limits.max_text_len == 65
            executor.submit(request(0, tuple(range(49))))
            assert drain(executor)[0].finish_reason == "length"
            with pytest.raises(UsageError) as refusal:
                executor.submit(request(0, tuple(range(50))))
            assert refusal.value.hint is not None
            assert "guaranteed_no_evict" in refusal.value.hint
            assert ("--enable-chunked-context" in refusal.value.hint) is chunks
        with open_executor(open_engine(folder)) as executor:
            executor.submit(request(0, tuple(range(60))))
            assert drain(executor)[0].finish_reason == "length"
    wide = dataclasses.replace(tight, enable_chunked_context=True)
    with open_executor(open_engine(folder), ExecutorOptions(trtllm=wide)) as executor:
        assert executor.limits.max_text_len == 128
        executor.submit(request(0, tuple(range(100))))
        assert drain(executor)[0].finish_reason == "length"


def test_a_prompt_is_bound_by_max_num_tokens_not_by_max_input_len(engine: Engines) -> None:
    with open_executor(open_engine(engine(max_batch_size=1, max_num_tokens=100))) as executor:
        executor.submit(request(0, tuple(range(100))))
        assert drain(executor)[0].finish_reason == "length"
        with pytest.raises(UsageError, match="101 tokens long, above max_input_len 100") as refusal:
            executor.submit(request(1, tuple(range(101))))
        assert "--max-num-tokens" in str(refusal.value.hint)
    with open_executor(open_engine(engine())) as executor:
        executor.submit(request(0, tuple(range(112))))
        assert drain(executor)[0].finish_reason == "length"
        with pytest.raises(UsageError, match="128 tokens long, above max_input_len 127") as refusal:
            executor.submit(request(1, tuple(range(128))))
        assert "--max-seq-len" in str(refusal.value.hint)


def test_without_context_fmha_a_prompt_is_bound_by_max_input_len(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    plugin = {"context_fmha": False}
    folder = standin_engines.build(standin, tiny_checkpoint, tmp_path / "old", plugin=plugin)
    options = ExecutorOptions(lookahead=LookaheadConfig(4, 4, 4))
    with open_executor(open_engine(folder), options) as executor:
        assert executor.limits.max_input_len == 64
        executor.submit(request(0, tuple(range(64))))
        assert drain(executor)[0].finish_reason == "length"


def test_chunked_context_on_a_lookahead_engine_is_refused(engine: Engines) -> None:
    """It would move keys and values by a neighbour's lengths: see the stand-in's own test."""
    options = ExecutorOptions(trtllm=TrtllmSettings(enable_chunked_context=True))
    with pytest.raises(UsageError, match="chunked context does not go with lookahead") as refusal:
        open_executor(open_engine(engine()), options)
    assert "omit --enable-chunked-context" in str(refusal.value.hint)
    with open_executor(open_engine(engine(1, 1, 0)), options) as executor:
        executor.submit(request(0))
        assert drain(executor)[0].finish_reason == "length"


def test_a_triple_without_drafts_is_a_plain_engine(engine: Engines) -> None:
    """(1,2,0) is legal, and feeds one token a step; C++ starts no plain engine with it."""
    with open_executor(open_engine(engine(1, 2, 0))) as executor:
        executor.submit(request(0))
        executor.submit(request(1, lookahead=AUTOREGRESSIVE, sampling={"temperature": 0.8}))
        assert {output.finish_reason for output in drain(executor).values()} == {"length"}


@pytest.mark.parametrize("standin", ["1.0.0", "1.2.1"], indirect=True)
def test_a_small_cache_fails_the_start(engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "100")
    with pytest.raises(TrtlaError, match=r"cannot start .*Attention window too large") as refusal:
        open_executor(open_engine(engine()))
    assert "memory" in str(refusal.value.hint)


def test_a_start_that_fails_otherwise_is_one_sentence_too(
    engine: Engines, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine(engine())
    config = (opened.path / "config.json").read_text()
    (opened.path / "config.json").write_text(config.replace('"PAGED"', '"SOMETHING"'))
    with pytest.raises(TrtlaError, match=r"cannot start .*: Invalid KV cache type: SOMETHING"):
        open_executor(opened)

    def no_memory(*_: Any) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(standin.load("bindings.executor"), "Executor", no_memory)
    with pytest.raises(TrtlaError, match=r"cannot start .*: std::bad_alloc"):
        open_executor(opened)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_of_memory_is_between_0_and_1(share: float) -> None:
    with pytest.raises(UsageError, match="kv_cache_free_gpu_memory_fraction"):
        TrtllmSettings(share)


@pytest.mark.parametrize(
    ("file", "key", "old", "new", "message"),
    [
        (
            "config.json",
            "version",
            "1.2.1",
            "0.19.0",
            r"TensorRT-LLM 0\.19\.0, and .* is",
        ),
        ("trtla.json", "compute_capability", "9.0", "8.6", r"8\.6, and this GPU has 9\.0"),
    ],
)
def test_an_engine_of_another_release_or_gpu_is_refused(
    engine: Engines, file: str, key: str, old: str, new: str, message: str
) -> None:
    path = engine() / file
    written = json.loads(path.read_text())
    assert written[key] == old
    path.write_text(json.dumps({**written, key: new}))
    with pytest.raises(TrtlaError, match=message):
        open_executor(open_engine(path.parent))


def test_the_wrong_number_of_processes_is_told(
    engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(UsageError, match="1 rank, and 2 processes run"):
        open_executor(open_engine(engine()))


def test_a_torch_engine_takes_no_settings_of_tensorrt_llm(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    build_engine(tiny_checkpoint, tmp_path / "engine", BuildSettings(), backend="torch")
    options = ExecutorOptions(trtllm=TrtllmSettings(enable_chunked_context=True))
    with pytest.raises(UsageError, match="torch engine"):
        open_executor(open_engine(tmp_path / "engine"), options)


@pytest.mark.parametrize("choice", [{"device": "cpu"}, {"dtype": "float32"}])
def test_a_tensorrt_llm_engine_takes_no_choices_of_torch(
    engine: Engines, choice: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="is a TensorRT-LLM engine"):
        open_executor(open_engine(engine()), ExecutorOptions(**choice))  # type: ignore[arg-type]
