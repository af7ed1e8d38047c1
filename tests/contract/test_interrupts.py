"""An interrupt in one stream's step harms no other stream on TensorRT-LLM: no token is lost.

Interrupts come at every line of the modules that hold state, one run each.
"""

from __future__ import annotations

import dis
import sys
from contextlib import suppress
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.support.interrupts import Lines, once_each
from trtla import LLM, SamplingParams, TrtlaError
from trtla.runtime import executor as in_flight
from trtla.runtime import executor as recovery
from trtla.runtime.request import Request
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm import answer as trtllm_answer
from trtla.trtllm import executor as trtllm
from trtla.trtllm.answer import TrtllmAnswer
from trtla.trtllm.executor import TrtllmExecutor

STATE = (trtllm, trtllm_answer, in_flight, recovery)
BROKEN, OTHER = "def read(path):\n    ", "aaaaaaaaaaaa"
LENGTH = 6


@pytest.fixture
def llm(standin, fake_gpu, engine):
    with LLM(engine()) as opened:
        yield opened


def read(stream, got):
    """Read a stream to its end; its completion."""
    done = None
    for chunk in stream:
        got += chunk.token_ids
        done = chunk.completion
    return done


def interrupted_run(llm, expected, lines, stop=()):
    """Two streams in one batch; one is read while an interrupt may come, then the other.

    How the first one ended, where it did.
    """
    before, got, broken_ids, reason = llm.stats().new_tokens, [], [], None
    other = llm.stream(OTHER, SamplingParams(LENGTH))
    broken = llm.stream(BROKEN, SamplingParams(LENGTH, stop=stop))
    got += next(other).token_ids
    try:
        with suppress(KeyboardInterrupt), lines:
            reason = read(broken, broken_ids).finish_reason
    finally:
        sys.settrace(None)
    done = read(other, got)
    assert tuple(got) == done.output_ids == expected.output_ids
    assert (done.finish_reason, done.stats) == ("length", expected.stats)
    while llm._executor.poll():  # what has ended is reported again after an interrupt
        pass
    assert llm._executor._record.requests == llm._executor._running == {}
    lost = llm.stats().new_tokens - before - len(got) - len(broken_ids)
    assert 0 <= lost < LENGTH
    return reason


def test_an_interrupt_at_any_line_harms_no_other_stream(llm):
    (expected,) = llm.generate(OTHER, SamplingParams(LENGTH))
    (text,) = llm.generate(BROKEN, SamplingParams(LENGTH))
    stop, whole = text.text[2], Lines(STATE)
    assert interrupted_run(llm, expected, whole, stop) == "stop_words"
    places = once_each(whole.seen)
    assert len(places) > 60
    for place in places:
        lines = Lines(STATE, place)
        interrupted_run(llm, expected, lines, stop)
        assert len(lines.seen) == place + 1


class Instructions:
    """Interrupts one function at its k-th instruction."""

    def __init__(self, function: Any, raise_at: int) -> None:
        self._code, self.left = function.__code__, raise_at

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._instruction


def test_an_interrupt_between_any_two_instructions_of_the_wait_loses_no_response(llm):
    (expected,) = llm.generate(OTHER, SamplingParams(LENGTH))
    count = len(list(dis.get_instructions(TrtllmExecutor._await)))
    for place in range(count // 2, count):  # the library returns in this half
        interrupts = Instructions(TrtllmExecutor._await, place)
        interrupted_run(llm, expected, interrupts)
        assert interrupts.left < 0


def test_a_text_that_lacks_tokens_fails(llm, monkeypatch):
    """Whatever has lost them: nothing known does."""
    stream, poll = llm.stream(OTHER, SamplingParams(LENGTH)), llm._executor.poll
    next(stream)
    monkeypatch.setattr(llm._executor, "poll", lambda: (poll(), poll())[1])
    with pytest.raises(TrtlaError, match="prompt 0 has lost its output tokens 1 to"):
        read(stream, [])


def test_responses_lost_by_an_interrupt_are_not_the_kv_caches_fault(llm, monkeypatch):
    """An interrupt inside the library, which only a library in Python can have."""
    stream, executor = llm.stream(OTHER, SamplingParams(LENGTH)), llm._executor._executor
    next(stream)

    def lose(**given: Any) -> None:
        waited(**given)
        raise KeyboardInterrupt

    waited = executor.await_responses
    monkeypatch.setattr(executor, "await_responses", lose)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(BROKEN, SamplingParams(LENGTH))
    monkeypatch.setattr(executor, "await_responses", waited)
    with pytest.raises(TrtlaError, match="was interrupted meanwhile") as failure:
        read(stream, [])
    assert "K/V" not in str(failure.value)
    assert failure.value.hint == "ask again"


def test_a_stop_check_that_raises_ends_its_own_request_alone(llm):
    def check(ids: list[int]) -> bool:
        raise ZeroDivisionError

    executor, outputs = llm._executor, {0: [], 1: []}
    executor.submit(Request(0, (1, 2), SamplingParams(LENGTH), stop_check=check))
    executor.submit(Request(1, (1, 2), SamplingParams(LENGTH)))
    while step := executor.poll():
        for output in step:
            outputs[output.request_id].append(output)
    (failed,) = outputs[0]
    assert failed.finish_reason == "failed"
    assert "request 0 failed: ZeroDivisionError" in failed.error.message
    assert sum(len(output.new_tokens) for output in outputs[1]) == LENGTH


def result(tokens: list[int], iterations: int) -> SimpleNamespace:
    """A response as the library gives it."""
    shown = {"output_token_ids": [tokens], "decoding_iter": iterations, "is_final": False}
    return SimpleNamespace(has_error=lambda: False, result=SimpleNamespace(**shown))


def test_no_draft_is_taken_back_when_a_response_of_several_iterations_is_cut():
    request = Request(0, (1, 2), SamplingParams(50), end_ids=frozenset({8}))
    answer, accepted = TrtllmAnswer(request, 1, LookaheadConfig(3, 3, 3), None), []
    for response in (result([1], 1), result([1, 2, 3], 2), result([8, 5, 6, 7, 5], 5)):
        output = answer.read(response)
        answer.commit(output, response)
        accepted.append((output.accepted, answer.stats.accepted))
    assert output.new_tokens == (8,)
    assert accepted == [(0, 0), (2, 2), (0, 2)]
