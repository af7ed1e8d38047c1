"""One replica on the shipped model, without Ray: what it streams, and how texts leave it."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from tests.extras.ray.support import SHIPPED
from trtla import LLM, SamplingParams, UsageError
from trtla.extras.ray.replica import Replica
from trtla.formats.engine import model_digest
from trtla.llm.prompt import PromptRequest
from trtla.runtime.request import Output, Request


def open_shipped() -> LLM:
    return LLM(SHIPPED)


@cache
def digest() -> str:
    with open_shipped() as llm:
        return model_digest(llm.engine)


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica("app", open_shipped, digest())
    yield made
    made._llm.close()


def request(llm: LLM, length: int, **more) -> Request:
    sampling = SamplingParams(length, 0.8, seed=2, **more)
    return replace(llm.request(PromptRequest("one", "def f(", sampling)), end_ids=frozenset())


async def outputs(replica: Replica, asked: Request, *more: object) -> list[Output]:
    sent = pickle.loads(pickle.dumps((asked, *more)))  # noqa: S301  written here
    said = [one async for said in replica.stream(*sent) for one in said]
    return pickle.loads(pickle.dumps(said))  # noqa: S301


def tokens(said: list[Output]) -> tuple[int, ...]:
    return tuple(token for one in said for token in one.new_tokens)


def test_texts_from_the_middle_and_errors(replica):
    async def work() -> None:
        llm = replica._llm
        assert replica.opened() == (llm.limits, llm.description)
        whole = await outputs(replica, request(llm, 30))
        ids = tokens(whole)
        assert len(ids) == 30
        assert whole[-1].finish_reason == "length"
        rest = await outputs(replica, replace(request(llm, 30), begun=ids[:11]))
        assert ids[:11] + tokens(rest) == ids
        (refused,) = await outputs(replica, replace(request(llm, 11), begun=ids[:11]))
        assert refused.finish_reason == "failed"
        assert isinstance(refused.error, UsageError)
        late = await outputs(replica, request(llm, 900, allotted_time_ms=1))
        assert late[-1].finish_reason == "timed_out"

    asyncio.run(work())


def test_stop_strings_and_grammars_are_made_again(replica):
    pytest.importorskip("llguidance")

    async def work() -> None:
        llm = replica._llm
        sampling = SamplingParams(30, 0.8, seed=2, grammar={"regex": "[a-z]+( [a-z]+){5}"})
        (whole,) = llm.generate(["def f("], sampling)
        written = tuple(whole.token_ids)
        words = llm.request(PromptRequest("one", "def f(", sampling))
        for begun in (0, 3):
            said = await outputs(replica, replace(words, begun=written[:begun]))
            assert (*written[:begun], *tokens(said))[: len(written)] == written
        bad = replace(words, sampling=replace(sampling, grammar={"regex": "["}))
        (refused,) = await outputs(replica, bad)
        assert "one: the regular expression cannot be used" in refused.error.message
        (plain,) = llm.generate(["def f("], SamplingParams(30, 0.8, seed=2))
        stop = [plain.text[6:10]]
        ended = await outputs(replica, request(llm, 30, stop=stop))
        assert ended[-1].finish_reason == "stop_words"
        assert len(tokens(ended)) < 30

    asyncio.run(work())


def test_stop_strings_see_the_control_tokens_that_the_text_shows(replica):
    async def work() -> None:
        llm = replica._llm
        control = min(llm.tokenizer.control_ids)
        name = llm.tokenizer.token_name(control)
        asked = request(llm, 9, stop=["#"], logit_bias={control: 100})
        for marks, reason in (({name: "#"}, "stop_words"), (None, "length")):
            assert (await outputs(replica, asked, False, marks))[-1].finish_reason == reason

    asyncio.run(work())


def test_a_stream_that_is_closed_leaves_the_batch(replica):
    async def work() -> None:
        poll = replica._llm._executor.poll

        def slowly(timeout: float | None = None) -> list[Output]:
            said = poll(timeout)
            time.sleep(0.05)  # or all might have been written before the stream is closed
            return said

        replica._llm._executor.poll = slowly
        stream = replica.stream(request(replica._llm, 900))
        await anext(stream)
        await stream.aclose()
        stats = await replica.stats()
        assert (stats.running, stats.waiting) == (0, 0)

    asyncio.run(work())


def test_another_model_at_the_same_place_is_refused():
    with pytest.raises(UsageError, match="another model than when the server began"):
        Replica("app", open_shipped, digest()[::-1])
