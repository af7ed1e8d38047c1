"""A text that another executor began goes on as it would have there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

import trtla
from trtla import LLM, SamplingParams, UsageError
from trtla.llm.prompt import PromptRequest
from trtla.runtime.request import Output, Request

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
PROMPT = "def read_file(path"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SHIPPED, block_reuse=True) as opened:
        yield opened


def outputs(llm: LLM, request: Request) -> list[Output]:
    inbox, found = SimpleQueue(), list[Output]()
    llm.executor.submit([request], inbox.put)
    while not found or found[-1].finish_reason is None:
        found += [output for _, output in inbox.get(timeout=60)]
    return found


def ids(found: list[Output]) -> tuple[int, ...]:
    return tuple(token for output in found for token in output.new_tokens)


@pytest.mark.parametrize("heat", [0.0, 0.9])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_begun_text_goes_on_with_the_same_tokens(llm, heat, logprobs):
    sampling = SamplingParams(40, heat, seed=7)
    request = replace(llm.request(PromptRequest("one", PROMPT, sampling)), logprobs=logprobs)
    whole = outputs(llm, request)
    for known in (1, 2, 17, 39):
        begun = ids(whole)[:known]
        if len(begun) == len(ids(whole)):
            continue
        request = llm.request(PromptRequest("two", PROMPT, sampling))
        rest = outputs(llm, replace(request, begun=begun))
        assert rest[0].start == known
        assert begun + ids(rest) == ids(whole)
        assert rest[-1].finish_reason == whole[-1].finish_reason


def test_a_stop_string_that_began_before_still_ends_the_text(llm):
    (plain,) = llm.generate(PROMPT, SamplingParams(24))
    stop = plain.text[6:12]
    (answer,) = llm.answers(0, _asked(llm, stop))
    whole = outputs(llm, answer.request)
    assert whole[-1].finish_reason == "stop_words"
    begun = ids(whole)[:-1]
    again = replace(llm.answers(0, _asked(llm, stop))[0].request, begun=begun)
    assert begun + ids(outputs(llm, again)) == ids(whole)


def _asked(llm, stop):
    return PromptRequest("one", PROMPT, SamplingParams(24, stop=(stop,)))


def test_more_than_is_asked_for_is_refused(llm):
    request = llm.request(PromptRequest("one", PROMPT, SamplingParams(3)))
    with pytest.raises(UsageError, match="has 3 output tokens and asks for 3"):
        llm.limits.check(replace(request, begun=(1, 2, 3)))
