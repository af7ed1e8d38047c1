"""A step that fails harms no text on TensorRT-LLM: no token is lost.

Errors come at every line of the modules that hold state, one run each.
"""

from __future__ import annotations

from linecache import getline
from types import SimpleNamespace

import pytest

from tests.support.examples import some
from tests.support.interrupts import Lines, once_each
from trtla import LLM, SamplingParams, TrtlaError
from trtla.runtime import executor as in_flight
from trtla.runtime.request import Request
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm import executor as trtllm
from trtla.trtllm.executor import TrtllmAnswer

STATE = (trtllm, in_flight)
BROKEN, OTHER = "def read(path):\n    ", "aaaaaaaaaaaa"
LENGTH = 6
LAST = "return outputs"
"""A step's last line, which fails nowhere but in a test: its outputs would be lost."""


class Torn(BaseException):
    """No error that the code knows."""


@pytest.fixture
def llm(standin, fake_gpu, engine):
    with LLM(engine()) as opened:
        yield opened


def torn_run(llm, expected, lines, stop=()):
    """Two texts in one batch; an error may come at any line of the thread that decodes them."""
    sampling = [SamplingParams(LENGTH), SamplingParams(LENGTH, stop=stop)]
    llm.executor.call(lambda _: lines.__enter__())
    refused = None
    try:
        done, _ = llm.generate([OTHER, BROKEN], sampling)
    except TrtlaError as error:  # where it was handed in
        refused = error.message
    assert refused is None or "Torn" in refused
    if refused is None:
        assert done.output_ids == expected.output_ids
        assert (done.finish_reason, done.stats) == ("length", expected.stats)
    llm.executor.call(lambda _: lines.__exit__())
    llm.generate(OTHER, SamplingParams(1))  # what has ended is forgotten by the next step
    assert llm._executor._running == {}


def test_an_error_at_any_line_harms_no_text(llm):
    (expected,) = llm.generate(OTHER, SamplingParams(LENGTH))
    (text,) = llm.generate(BROKEN, SamplingParams(LENGTH))
    stop, whole = text.text[2], Lines(STATE)
    torn_run(llm, expected, whole, stop)
    places = [one for one in once_each(whole.seen) if getline(*whole.seen[one]).strip() != LAST]
    assert len(places) > 50
    for place in some(places):
        torn_run(llm, expected, Lines(STATE, place, Torn), stop)


def result(tokens: list[int], iterations: int) -> SimpleNamespace:
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
