"""Readers are woken rarely, and miss nothing."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest

from trtla.llm import engine_thread as module
from trtla.llm.decoder import Event
from trtla.llm.engine_thread import Coalescer, Inbox
from trtla.runtime.request import Output
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig

STATS = RequestStats(LookaheadConfig(1, 1, 0), "none")


def event(start: int, last: bool = False) -> Event:
    return 7, Output(7, (start,), "length" if last else None, STATS, start=start)


def test_only_beginnings_ends_and_errors_wake_one_who_has_just_looked(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    coalescer = Coalescer(0.5)
    assert coalescer.wakes([event(3)])
    coalescer.begin()
    assert coalescer.wakes([event(3)])  # it may have missed this one
    assert coalescer.end() == 0.5
    assert not coalescer.wakes([event(3)])
    for urgent in (event(0), event(4, last=True), (7, RuntimeError())):
        assert coalescer.wakes([event(3), urgent])
    now[0] += 0.5
    assert coalescer.wakes([event(3)])


def test_without_a_time_all_wake() -> None:
    coalescer = Coalescer(0.0)
    coalescer.begin()
    assert coalescer.end() == 0.0
    assert coalescer.wakes([event(3)])


@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.016])
def test_all_events_arrive_in_order(seconds: float) -> None:
    inbox, found = Inbox(seconds), list[int]()
    waits = random.Random(3)

    def write() -> None:
        for number in range(600):
            inbox.put([event(number)])
            if waits.random() < 0.2:
                time.sleep(waits.random() * 0.003)
        inbox.put([event(600, last=True)])

    writer = threading.Thread(target=write)
    writer.start()
    while not found or found[-1] != 600:
        found += [output.start for _, output in inbox.take()]
    writer.join()
    assert found == list(range(601))


def test_an_event_after_a_pause_wakes_who_waits() -> None:
    inbox = Inbox(0.001)
    inbox.put([event(0)])
    assert [output.start for _, output in inbox.take()] == [0]
    threading.Timer(0.05, inbox.put, ([event(1)],)).start()
    assert [output.start for _, output in inbox.take()] == [1]
