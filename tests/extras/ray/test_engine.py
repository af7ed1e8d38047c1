"""Texts whose replicas are lost; Ray's handle is a stand-in that loses them as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from trtla import SamplingParams, TrtlaError
from trtla.extras.ray import engine as module
from trtla.extras.ray.engine import ReplicaEngine
from trtla.extras.ray.replica import NotOpen
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import RequestStats

Serving = Callable[[Request], AsyncIterator[list[Output]]]
IDS = (11, 12, 13, 14, 15)


class Handle:
    """Answers successive calls of `stream`, each with its own script."""

    def __init__(self, *calls: Serving) -> None:
        self._calls = list(calls)
        self.begun: list[tuple[int, ...]] = []
        self.stream = SimpleNamespace(remote=self._remote)
        self.cancelled = 0

    def _remote(self, request: Request, whole: bool) -> Handle.Stream:
        self.begun.append(request.begun)
        return Handle.Stream(self, self._calls.pop(0)(request))

    class Stream:
        def __init__(self, handle: Handle, items: AsyncIterator) -> None:
            self._handle, self._items = handle, items

        def __aiter__(self) -> AsyncIterator:
            return self._items

        def cancel(self) -> None:
            self._handle.cancelled += 1


def lost_after(count: int) -> Serving:
    """So many tokens, one at a time; then the replica dies, unless that was all."""

    async def serve(request: Request) -> AsyncIterator[list[Output]]:
        place = len(request.begun)
        for start in range(place, min(len(IDS), place + count)):
            reason = "length" if start + 1 == len(IDS) else None
            yield [Output(99, (IDS[start],), reason, RequestStats(), start=start)]
        if place + count < len(IDS):
            raise ConnectionError("the replica is gone")

    return serve


async def not_open(request: Request) -> AsyncIterator[list[Output]]:
    raise NotOpen("the model is failed: OSError: the disk is gone")
    yield []


async def refusing(request: Request) -> AsyncIterator[list[Output]]:
    yield [Output(99, (), "failed", RequestStats(), error=TrtlaError("the text's own fault"))]


async def silent(request: Request) -> AsyncIterator[list[Output]]:
    await asyncio.sleep(600)
    yield []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_LONG_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_LATE_S", 0.0)


def run(handle: Handle, allotted_ms: int | None = None, cancel: bool = False) -> list:
    """What is posted for one request."""
    posted: list = []
    engine = ReplicaEngine(None, None, lambda _: None)
    engine._deployment = SimpleNamespace(handle=handle)

    async def work() -> None:
        sampling = SamplingParams(len(IDS), allotted_time_ms=allotted_ms)
        engine.submit([Request(5, (1, 2), sampling)], posted.extend)
        (text,) = engine._texts.values()
        await asyncio.sleep(0)  # it is where the handle has put it now
        if cancel:
            engine.cancel([5])
        await asyncio.wait({text.task}, timeout=120)
        assert not engine._texts

    asyncio.run(work())
    return posted


def tokens(posted: list) -> tuple[int, ...]:
    return tuple(token for _, output in posted for token in output.new_tokens)


def test_a_text_goes_on_behind_what_has_arrived():
    handle = Handle(lost_after(2), lost_after(0), lost_after(1), lost_after(9))
    posted = run(handle)
    assert handle.begun == [(), IDS[:2], IDS[:2], IDS[:3]]
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


def test_replicas_without_a_model_are_no_fault_of_a_text():
    handle = Handle(lost_after(1), *[not_open] * 9, lost_after(0), lost_after(9))
    assert tokens(run(handle)) == IDS


def test_a_text_that_is_refused_is_not_asked_again():
    handle = Handle(refusing)
    ((_, output),) = run(handle)
    assert output.error.message == "the text's own fault"
    assert len(handle.begun) == 1


def test_a_cancelled_text_is_cancelled_where_it_is():
    handle = Handle(silent)
    assert run(handle, cancel=True) == []
    assert handle.cancelled == 1


def test_a_text_that_nobody_takes_ends_in_its_time():
    handle = Handle(silent)
    ((_, output),) = run(handle, allotted_ms=20)
    assert output.finish_reason == "timed_out"
    assert handle.cancelled == 1
