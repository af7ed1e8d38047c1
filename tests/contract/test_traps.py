"""The traps of TensorRT-LLM's lookahead at run time, each walked into on the stand-in.

Where trtla's own checks are what keeps a request out, the test first shows the fall: it takes the
check away and sees what the stand-in does as the C++ executor would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import refused, trtla
from tests.contract.conftest import Standin
from trtla import LLM, SamplingParams, TrtlaError, UsageError
from trtla.build.engine import BuildSettings, build_engine, open_engine
from trtla.cli.drafter_options import check_drafters
from trtla.drafting import NO_DRAFTER, DrafterSettings
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.executor import Executor, Output, Request, open_executor
from trtla.runtime.executor_options import ExecutorOptions
from trtla.runtime.trtllm_settings import TrtllmSettings
from trtla.trtllm_library import REMOVED

PROMPT = tuple(b"def read(path):\n    ")
pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")

Engines = Callable[..., Path]


@pytest.fixture
def engine(tiny_checkpoint: Path, tmp_path: Path) -> Engines:
    """Builds an engine of a triple; `bare` is without trtla.json, as trtllm-build leaves it."""

    def build(w: int = 4, n: int = 4, g: int = 4, *, bare: bool = False) -> Path:
        folder = tmp_path / f"{w}-{n}-{g}{'-bare' if bare else ''}"
        if not folder.exists():
            asked = BuildSettings(
                LookaheadConfig(w, n, g), max_batch_size=4, max_input_len=64, max_seq_len=128
            )
            build_engine(tiny_checkpoint, folder, asked, backend="tensorrt-llm")
            if bare:
                (folder / "trtla.json").unlink()
        return folder

    return build


def request(number: int, prompt: tuple[int, ...] = PROMPT, **given: Any) -> Request:
    sampling = SamplingParams(max_output_len=16, **given.pop("sampling", {}))
    return Request(number, prompt, sampling, **given)


def drain(executor: Executor) -> dict[int, Output]:
    """The last output of every request."""
    last: dict[int, Output] = {}
    while step := executor.poll():
        last.update({output.request_id: output for output in step})
    return last


def loosened(executor: Executor, **limits: Any) -> Executor:
    """The executor without one of trtla's checks."""
    executor._limits = dataclasses.replace(executor.limits, **limits)  # type: ignore[attr-defined]
    return executor


def test_an_oversized_triple_would_end_every_active_request(engine: Engines) -> None:
    with loosened(open_executor(open_engine(engine())), lookahead=LookaheadConfig(9, 9, 9)) as fall:
        fall.submit(request(0, lookahead=LookaheadConfig(4, 4, 4), name="the innocent one"))
        fall.submit(request(1, lookahead=LookaheadConfig(5, 4, 4), name="the large one"))
        last = drain(fall)
    assert [last[i].finish_reason for i in (0, 1)] == ["failed", "failed"]
    for number, name in ((0, "the innocent one"), (1, "the large one")):
        error = last[number].error
        assert error is not None
        assert name in error.message
        assert "forwardAsync" in error.message
        assert error.hint is not None
        assert "all active requests" in error.hint


def test_so_it_is_refused_before_it_is_enqueued(engine: Engines) -> None:
    with open_executor(open_engine(engine())) as executor:
        executor.submit(request(0))
        with pytest.raises(UsageError, match="5,4,4"):
            executor.submit(request(1, lookahead=LookaheadConfig(5, 4, 4)))
        assert drain(executor)[0].finish_reason == "length"


def test_an_error_of_one_request_names_it_and_leaves_the_others(engine: Engines) -> None:
    with loosened(
        open_executor(open_engine(engine())), max_input_len=999, max_text_len=999
    ) as fall:
        fall.submit(request(0))
        fall.submit(request(1, tuple(range(160)), name="line 7 of prompts.jsonl"))
        last = drain(fall)
    assert last[0].finish_reason == "length"
    assert last[1].error is not None
    assert "line 7 of prompts.jsonl" in last[1].error.message
    assert "Prompt length" in last[1].error.message


def test_llm_raises_the_error_of_its_own_prompt(engine: Engines) -> None:
    with LLM(engine()) as llm:
        loosened(llm._executor, max_input_len=999, max_text_len=999)
        with pytest.raises(TrtlaError, match=r"prompt 1 failed in TensorRT-LLM: .*Prompt length"):
            llm.generate([PROMPT, tuple(range(160))])
        assert len(llm.generate([PROMPT])) == 1, "the executor lives on"


@pytest.mark.parametrize("lookahead", [None, AUTOREGRESSIVE])
def test_sampling_is_refused_where_it_would_be_ignored(engine: Engines, lookahead: Any) -> None:
    hot = {"sampling": {"temperature": 0.8}, "lookahead": lookahead}
    with open_executor(open_engine(engine())) as executor:
        with pytest.raises(UsageError, match="greedy only") as refusal:
            executor.submit(request(0, **hot))
        assert refusal.value.hint is not None
        assert "--lookahead 1,1,0" in refusal.value.hint
        assert "--backend torch" in refusal.value.hint
        executor.submit(request(1, sampling={"temperature": 0.8, "top_k": 1}))
        assert drain(executor)[1].finish_reason == "length", "top_k 1 is greedy"


@pytest.mark.parametrize("triple", [(4, 4, 4), (1, 1, 0)])
def test_other_drafters_are_refused_with_the_reason(engine: Engines, triple: Any) -> None:
    ngram, folder = DrafterSettings(("ngram",)), engine(*triple)
    with pytest.raises(UsageError, match="drafter ngram, but an engine of TensorRT-LLM") as refusal:
        LLM(folder, drafter=ngram)
    assert refusal.value.hint is not None
    assert "--backend torch" in refusal.value.hint
    with pytest.raises(UsageError, match=r"--drafter asks for .* makes its drafts itself"):
        check_drafters(str(folder), [("--drafter", ngram)])
    with LLM(folder) as llm:
        with pytest.raises(UsageError, match="prompt 0 asks for the drafter ngram"):
            llm.generate([PROMPT], drafter=ngram)
        assert llm.generate([PROMPT], drafter=NO_DRAFTER)[0].lookahead == AUTOREGRESSIVE


def test_draft_models_have_no_place_on_them(engine: Engines) -> None:
    folder = engine()
    with pytest.raises(UsageError, match="draft_device cpu cannot be chosen") as refusal:
        LLM(folder, draft_device="cpu")
    assert refusal.value.hint is not None
    assert "--backend torch" in refusal.value.hint
    ran = trtla("run", "--engine-dir", folder, "--input-text", "a", "--draft-dtype", "float16")
    refused(ran, 2, "draft_dtype float16 cannot be chosen", "leave --draft-dtype away")


def test_their_engines_search_no_beams(engine: Engines) -> None:
    with LLM(engine()) as llm, pytest.raises(UsageError, match="builds none with beams"):
        llm.beam_search(PROMPT)
    ran = trtla("run", "--engine-dir", engine(), "--input-text", "a", "--num-beams", "2")
    refused(ran, 2, "builds none with beams", "leave --num-beams away")


def test_a_plain_engine_samples_and_repeats_by_seed(engine: Engines) -> None:
    def text(seed: int) -> tuple[int, ...]:
        sampling = SamplingParams(max_output_len=16, temperature=3.0, top_p=0.99, seed=seed)
        with open_executor(open_engine(engine(1, 1, 0))) as executor:
            executor.submit(Request(0, PROMPT, sampling))
            outputs = []
            while step := executor.poll():
                outputs += step
        return tuple(token for output in outputs for token in output.new_tokens)

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


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
    from trtla.runtime.trtllm_start import executor_config

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
    assert config.kv_cache_config.enable_block_reuse is True
    assert config.enable_chunked_context is True
    policy = config.scheduler_config.capacity_scheduler_policy
    assert policy == bindings.CapacitySchedulerPolicy.MAX_UTILIZATION


def test_what_max_utilization_could_not_restart_is_refused(engine: Engines) -> None:
    """A streamed request that is evicted starts again with all its text as the prompt."""
    tight = TrtllmSettings(scheduler_policy="max_utilization")
    with open_executor(open_engine(engine()), ExecutorOptions(trtllm=tight)) as executor:
        assert executor.limits.max_text_len == 65
        with pytest.raises(UsageError) as refusal:
            executor.submit(request(0, tuple(range(60))))
        assert refusal.value.hint is not None
        assert "guaranteed_no_evict" in refusal.value.hint
    wide = dataclasses.replace(tight, enable_chunked_context=True)
    with open_executor(open_engine(engine()), ExecutorOptions(trtllm=wide)) as executor:
        assert executor.limits.max_text_len == 128


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_of_memory_is_between_0_and_1(share: float) -> None:
    with pytest.raises(UsageError, match="kv_cache_free_gpu_memory_fraction"):
        TrtllmSettings(share)


def test_an_engine_of_another_release_is_refused(engine: Engines) -> None:
    folder = engine()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "version": "0.19.0"}))
    with pytest.raises(TrtlaError, match=r"built with TensorRT-LLM 0\.19\.0, and .* is installed"):
        open_executor(open_engine(folder))


def test_an_engine_of_another_gpu_is_refused(engine: Engines) -> None:
    folder = engine()
    manifest = json.loads((folder / "trtla.json").read_text())
    assert manifest["compute_capability"] == "9.0"
    (folder / "trtla.json").write_text(json.dumps({**manifest, "compute_capability": "8.6"}))
    with pytest.raises(TrtlaError, match=r"compute capability 8\.6, and this GPU has 9\.0"):
        open_executor(open_engine(folder))


def test_the_wrong_number_of_processes_is_told(
    engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(UsageError, match="1 rank, and 2 processes run"):
        open_executor(open_engine(engine()))


@pytest.mark.parametrize("standin", ["1.3.0rc15"], indirect=True)
def test_a_release_after_the_removal_is_told_apart(
    tiny_checkpoint: Path, tmp_path: Path, standin: Standin
) -> None:
    with pytest.raises(TrtlaError, match="lacks") as refusal:
        build_engine(
            tiny_checkpoint,
            tmp_path / "engine",
            BuildSettings(LookaheadConfig(4, 4, 4)),
            backend="tensorrt-llm",
        )
    assert refusal.value.hint == REMOVED
    assert not (tmp_path / "engine").exists()


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


def test_the_library_is_shut_down_on_every_way_out(
    engine: Engines, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = standin.load("bindings.executor")
    shut: list[int] = []
    real = bindings.Executor.shutdown

    def shutdown(self: Any) -> None:
        shut.append(1)
        real(self)

    monkeypatch.setattr(bindings.Executor, "shutdown", shutdown)
    folder = engine()
    stream_and_fail(folder)
    assert len(shut) == 1, "a consumer that fails"
    monkeypatch.setattr(bindings.Executor, "await_responses", interrupt)
    with LLM(folder) as llm, pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPT)
    assert len(shut) == 2, "Ctrl-C"


def stream_and_fail(folder: Path) -> None:
    with contextlib.suppress(ZeroDivisionError), LLM(folder) as llm:
        for _ in llm.stream(PROMPT, SamplingParams(max_output_len=40)):
            raise ZeroDivisionError


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
