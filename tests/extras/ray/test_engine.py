"""Texts whose replicas are lost; Ray's handle is a stand-in that loses them as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from tests.extras.ray.support import wait_until
from trtla import SamplingParams, TrtlaError
from trtla.extras.ray import engine as module
from trtla.extras.ray.engine import ReplicaEngine
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats

Serving = Callable[[Request], AsyncIterator[list[Output]]]
IDS = (11, 12, 13, 14, 15)


class Handle:
    """Answers successive calls of `stream`, each with its own script."""

    def __init__(self, *calls: Serving, reports: tuple[object, ...] = ()) -> None:
        self._calls = list(calls)
        self.reports = reports
        self.begun: list[tuple[int, ...]] = []
        self.stream = SimpleNamespace(remote=self._remote)
        self.cancelled = 0

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def broadcast(self, method: str) -> SimpleNamespace:
        assert method == "stats"
        return SimpleNamespace(results=lambda timeout_s, return_exceptions: self.reports)

    def _remote(self, request: Request, whole: bool, shown: object) -> Handle.Stream:
        self.begun.append(request.begun)
        return Handle.Stream(self, self._calls.pop(0)(request))

    class Stream:
        def __init__(self, handle: Handle, items: AsyncIterator) -> None:
            self._handle, self._items = handle, items

        def __aiter__(self) -> AsyncIterator:
            return self._items

        def cancel(self) -> None:
            self._handle.cancelled += 1


def lost_after(count: int, loss: type[BaseException] = ConnectionError) -> Serving:
    """So many tokens, one at a time; then the replica dies, unless that was all."""

    async def serve(request: Request) -> AsyncIterator[list[Output]]:
        place = len(request.begun)
        for start in range(place, min(len(IDS), place + count)):
            reason = "length" if start + 1 == len(IDS) else None
            yield [Output(99, (IDS[start],), reason, RequestStats(), start=start)]
        if place + count < len(IDS):
            raise loss("the replica is gone")

    return serve


async def refusing(request: Request) -> AsyncIterator[list[Output]]:
    yield [Output(99, (), "failed", RequestStats(), error=TrtlaError("the text's own fault"))]


async def silent(request: Request) -> AsyncIterator[list[Output]]:
    await asyncio.sleep(600)
    yield []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


def run(handle: Handle, cancel: bool = False) -> list:
    """What is posted for one request."""
    posted: list = []
    engine = ReplicaEngine(handle, lambda _: None)

    async def work() -> None:
        engine.submit([Request(5, (1, 2), SamplingParams(len(IDS)))], posted.extend)
        (text,) = engine._texts.values()
        await asyncio.sleep(0)  # it is where the handle has put it now
        if cancel:
            engine.cancel([5])
        await asyncio.wait({text.task}, timeout=120)
        assert not engine._texts

    asyncio.run(work())
    engine._ending.set()
    return posted


def tokens(posted: list) -> tuple[int, ...]:
    return tuple(token for _, output in posted for token in output.new_tokens)


def test_a_text_goes_on_behind_what_has_arrived():
    cancelled = lost_after(0, asyncio.CancelledError)  # so says Ray of some that are lost
    handle = Handle(lost_after(2), lost_after(0), lost_after(1), cancelled, lost_after(9))
    posted = run(handle)
    assert handle.begun == [(), IDS[:2], IDS[:2], IDS[:3], IDS[:3]]
    assert tokens(posted) == IDS
    assert {request_id for request_id, _ in posted} == {5}
    assert [one.start for _, one in posted] == [0, 1, 2, 3, 4]


def test_a_text_at_which_replicas_die_is_given_up():
    handle = Handle(lost_after(1), *[lost_after(0)] * 9)
    posted = run(handle)
    assert len(handle.begun) == 3
    error = posted[-1][1]
    assert isinstance(error, TrtlaError)
    assert "3 replicas were lost at this text: ConnectionError: the replica" in error.message


def test_a_text_that_is_refused_is_not_asked_again():
    handle = Handle(refusing)
    ((_, output),) = run(handle)
    assert output.error.message == "the text's own fault"
    assert len(handle.begun) == 1


def test_a_cancelled_text_is_cancelled_where_it_is():
    handle = Handle(silent)
    assert run(handle, cancel=True) == []
    assert handle.cancelled == 1


def test_figures_are_those_of_the_replicas_that_answer():
    one = ExecutorStats(running=2, kv_cache_usage=0.5)
    engine = ReplicaEngine(Handle(reports=(one, ConnectionError("gone"), one)), print)
    stats = engine.stats_later().result(60)
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (4, 0, 0.5)
    assert engine.replicas.running == 2
    engine._ending.set()


def test_a_server_without_replicas_fails_in_the_end(monkeypatch):
    monkeypatch.setattr(module, "_BEAT_S", 0.001)
    monkeypatch.setattr(module, "_DEAD_S", -1.0)
    handle, failed = Handle(reports=(ExecutorStats(),)), []
    engine = ReplicaEngine(handle, print)
    engine.on_failure = failed.append
    handle.reports = ()
    wait_until(lambda: failed)
    assert "no replica has answered" in failed[0].message
