"""The traps of TensorRT-LLM's lookahead at run time, each walked into on the stand-in.

Where trtla's own checks are what keeps a request out, the test first shows the fall: it takes the
check away and sees what the stand-in does as the C++ executor would.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import refused, trtla
from tests.support.standin import Standin
from tests.support.standin_requests import PROMPT, Engines, drain, request
from trtla import LLM, SamplingParams, TrtlaError, UsageError
from trtla.cli.shared.model import check_drafters
from trtla.formats.engine import open_engine
from trtla.llm.open import open_executor
from trtla.runtime.executor import Executor
from trtla.runtime.request import Request
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.executor import ExecutorOptions, TrtllmSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")


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
            llm.generate([PROMPT, tuple(range(160))], SamplingParams(16))
        assert len(llm.generate([PROMPT], SamplingParams(16))) == 1, "the executor lives on"


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
    with pytest.raises(UsageError, match=r"drafter asks for .* makes its drafts itself"):
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
    refused(ran, 2, "draft_dtype float16 cannot be chosen", "omit --draft-dtype")


def test_their_engines_keep_the_type_of_their_cache(engine: Engines) -> None:
    ran = trtla("run", "--engine-dir", engine(), "--input-text", "a", "--kv-cache-dtype", "int8")
    refused(ran, 2, "the type that it was built with, not int8", "omit --kv-cache-dtype")


def test_their_engines_search_no_beams(engine: Engines) -> None:
    with LLM(engine()) as llm, pytest.raises(UsageError, match="has no beams"):
        llm.beam_search(PROMPT)
    ran = trtla("run", "--engine-dir", engine(), "--input-text", "a", "--num-beams", "2")
    refused(ran, 2, "builds none with beams", "omit --num-beams")


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


def test_a_closed_executor_leaves_its_memory_to_the_next(
    engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "200")
    first = LLM(engine())
    expected = first.generate(PROMPT)[0].output_ids
    first.close()
    with LLM(engine()) as second:  # the first one is still referenced
        assert second.generate(PROMPT)[0].output_ids == expected
    assert first.stats().new_tokens == len(expected)
    assert first.is_leader


@pytest.mark.parametrize("standin", ["0.20.0", "0.21.0"], indirect=True)
def test_old_releases_that_shorten_a_text_fail_the_request(
    engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "100")
    with open_executor(open_engine(engine())) as executor:
        executor.submit(Request(0, PROMPT, SamplingParams(max_output_len=90), name="a long one"))
        executor.submit(request(1))
        last = drain(executor)
        assert last[1].finish_reason == "length"
        assert last[0].finish_reason == "failed"
        assert last[0].error is not None
        assert "a long one was ended by TensorRT-LLM after 46 of 90" in last[0].error.message
        executor.submit(request(0))
        assert drain(executor)[0].finish_reason == "length", "the id is free again"


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


@pytest.mark.parametrize("standin", ["0.20.0", "1.2.1"], indirect=True)
def test_private_requests_keep_their_blocks_where_the_release_can(
    standin: Standin, engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are reused by requests of one salt; those without one share them."""
    options = ExecutorOptions(trtllm=TrtllmSettings(kv_cache_enable_block_reuse=True))
    salts: list[int | None] = []
    with open_executor(open_engine(engine()), options) as executor:
        enqueue = executor._executor.enqueue_request

        def seen(asked: Any) -> int:
            salts.append(getattr(asked, "cache_salt_id", None))
            return int(enqueue(asked))

        monkeypatch.setattr(executor._executor, "enqueue_request", seen)
        given = [{}, {"private": True}, {"private": True}, {"space": -3}, {"space": -3}]
        if standin.version == "0.20.0":
            with pytest.raises(UsageError, match="is private, and this executor shares"):
                executor.submit(request(1, **given[1]))
            return
        for number, more in enumerate(given):
            executor.submit(request(number, **more))
        assert {done.finish_reason for done in drain(executor).values()} == {"length"}
    shared, one, other, *space = salts
    assert shared is None
    assert len({None, one, other, space[0]}) == 4
    assert space == [3, 3]
