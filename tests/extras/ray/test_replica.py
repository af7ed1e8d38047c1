"""One replica on the shipped model, without Ray: what it streams, and how texts leave it."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest

from tests.extras.ray.support import SHIPPED
from trtla import LLM, SamplingParams, TrtlaError, UsageError
from trtla.extras.ray import replica as module
from trtla.extras.ray.engine import ReplicaEngine
from trtla.extras.ray.replica import NotOpen, Replica, ReplicaLost, open_same, packed
from trtla.formats.engine import model_digest
from trtla.llm.preparing import GRAMMARS
from trtla.llm.prompt import PromptRequest
from trtla.runtime.request import Output, Request


def open_shipped() -> LLM:
    return LLM(SHIPPED)


def request(llm: LLM, length: int, **more) -> Request:
    sampling = SamplingParams(length, 0.8, seed=2, **more)
    return replace(llm.request(PromptRequest("one", "def f(", sampling)), end_ids=frozenset())


async def outputs(replica: Replica, asked: Request) -> list[Output]:
    return [one async for said in replica.stream(asked) for one in said]


async def stopped(replica: Replica) -> None:
    await replica._engine.close(120)


def test_an_engine_that_is_closed_while_it_loads_ends_what_it_has_opened():
    loading, loaded, ended = threading.Event(), threading.Event(), []
    deployment = SimpleNamespace(opened="a model", close=lambda: ended.append("replicas"))
    cluster = SimpleNamespace(close=lambda: ended.append("cluster"))

    def deploy(cluster: object) -> SimpleNamespace:
        loading.set()
        loaded.wait(60)
        return deployment

    engine = ReplicaEngine(lambda: cluster, deploy, print)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(engine.open)
        loading.wait(60)
        assert not engine.close(0)
        loaded.set()
        with pytest.raises(TrtlaError, match="closed"):
            opening.result(60)
    assert engine.close(60)
    assert ended == ["replicas", "cluster"]


def test_texts_from_the_middle_and_errors():
    async def work() -> None:
        replica = Replica(open_shipped, "app")
        opened = await replica.opened()
        llm = replica._engine.llm
        assert opened.limits == llm.limits
        whole = await outputs(replica, packed(request(llm, 30), (), None))
        ids = tuple(token for one in whole for token in one.new_tokens)
        assert len(ids) == 30
        assert whole[-1].finish_reason == "length"
        rest = await outputs(replica, packed(request(llm, 30), ids[:11], None))
        assert ids[:11] + tuple(token for one in rest for token in one.new_tokens) == ids
        refused = replica.stream(packed(request(llm, 11), ids[:11], None))
        ((output,),) = [one async for one in refused]
        assert output.finish_reason == "failed"
        assert isinstance(output.error, UsageError)
        late = await outputs(replica, packed(request(llm, 900), (), 1))
        assert late[-1].finish_reason == "timed_out"
        assert not replica._engine.num_in_flight
        await stopped(replica)

    asyncio.run(work())


def test_a_grammar_travels_as_its_text():
    pytest.importorskip("llguidance")

    def asked(llm: LLM, grammar: dict[str, str]) -> Request:
        sampling = SamplingParams(30, 0.8, seed=2, grammar=grammar)
        (answer,) = llm.answers(0, PromptRequest("one", "def f(", sampling))
        return answer.request

    async def work() -> None:
        replica = Replica(open_shipped, "app")
        await replica.opened()
        llm = replica._engine.llm
        words = asked(llm, {"regex": "[a-z]+( [a-z]+){5}"})
        (whole,) = llm.generate(["def f("], words.sampling)
        written = tuple(whole.token_ids)
        for begun in (0, 3):
            sent = packed(words, written[:begun], None)
            sent = pickle.loads(pickle.dumps(sent))  # noqa: S301  written here
            said = await outputs(replica, sent)
            rest = tuple(token for one in said for token in one.new_tokens)
            assert said[-1].finish_reason == whole.finish_reason
            assert (*written[:begun], *rest)[: len(written)] == written
        bad = replace(words, sampling=replace(words.sampling, grammar={"regex": "["}))
        (refused,) = await outputs(replica, packed(bad, (), None))
        assert "one: the regular expression cannot be used" in refused.error.message
        dead = {"lark": 'start: "a" X "q"\nX: /b+/ & /c+/'}
        (*_, failed) = await outputs(replica, packed(asked(llm, dead), (), None))
        assert failed.error.setting == "grammar"  # it ends in the middle of the text
        await stopped(replica)

    asyncio.run(work())


def test_each_replica_prepares_for_grammars():
    pytest.importorskip("llguidance")

    async def work() -> None:
        replica = Replica(open_shipped, "app")
        # Of a replica in the place of a lost one nothing else is asked.
        await replica.check_health()
        await replica._engine.lanes.done(GRAMMARS, lambda: None)
        assert replica._engine.llm._grammars._spelling is not None
        await stopped(replica)

    asyncio.run(work())


def test_a_stream_that_is_closed_leaves_the_batch(monkeypatch):
    async def work() -> None:
        replica = Replica(open_shipped, "app")
        await replica.opened()
        llm, arrived = replica._engine.llm, asyncio.Event()
        poll = llm._executor.poll

        def slowly(timeout: float | None = None) -> list[Output]:
            said = poll(timeout)
            time.sleep(0.05)  # or all might have been written before the stream is closed
            return said

        async def read() -> None:
            async for _ in replica.stream(packed(request(llm, 900), (), None)):
                arrived.set()

        monkeypatch.setattr(llm._executor, "poll", slowly)
        task = asyncio.create_task(read())
        await arrived.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stats = await replica._engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert not replica._engine.num_in_flight
        await stopped(replica)

    asyncio.run(work())


def test_nothing_is_sent_to_a_replica_before_its_model_is_open(monkeypatch):
    ended: Queue[str] = Queue()
    open_now, clock = threading.Event(), SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module, "_end", ended.put)

    def slowly() -> LLM:
        open_now.wait(120)
        return open_shipped()

    async def work() -> None:
        replica = Replica(slowly, "app")
        healthy = asyncio.create_task(replica.check_health())
        await asyncio.sleep(0.05)
        clock.now += 2 * module.LEASE_S  # which does not run yet
        assert not healthy.done()
        open_now.set()
        await healthy
        assert replica._engine.state == "ready"
        await replica.check_health()
        clock.now += module.LEASE_S
        await replica.check_health()
        assert ended.empty()
        clock.now += 1
        await replica.check_health()
        assert await asyncio.to_thread(ended.get, timeout=120) == "app"
        await stopped(replica)

    asyncio.run(work())


def test_a_model_that_does_not_open_is_said(monkeypatch):
    def fails() -> LLM:
        raise OSError("the disk is gone")

    async def work() -> None:
        replica = Replica(fails, "app")
        failure = await replica.opened()
        assert isinstance(failure, TrtlaError)
        assert failure.message == "OSError: the disk is gone"
        monkeypatch.setattr(module, "_comes_up", lambda app: True)
        await replica.check_health()  # the server asks why before Ray Serve puts another one there
        with pytest.raises(ReplicaLost, match="the model is failed: OSError: the disk is gone"):
            await replica.check_health()
        with pytest.raises(NotOpen, match="the disk is gone"):
            await outputs(replica, Request(1, (5,), SamplingParams(4)))
        with pytest.raises(OSError, match="the disk is gone"):
            await asyncio.wait_for(replica._engine.stats(), 120)

        late = Replica(fails, "app")  # in the place of one that was lost
        monkeypatch.setattr(module, "_comes_up", lambda app: False)
        with pytest.raises(ReplicaLost, match="the disk is gone"):
            await late.check_health()

    asyncio.run(work())


def test_another_model_at_the_same_place_is_refused():
    with LLM(SHIPPED) as llm:
        digest = model_digest(llm.engine)
    open_same(open_shipped, digest).close()
    with pytest.raises(UsageError, match="another model than when the server began"):
        open_same(open_shipped, digest[::-1])
