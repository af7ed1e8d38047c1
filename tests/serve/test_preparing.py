"""Requests on their way into the queue: long ones, clients that leave meanwhile, ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.support.served import SHORT, refused, serving, until
from trtla.llm.preparing import Preparing

LONG = {"prompt": "1 " * 30_000, "max_tokens": 1}


class Gate:
    """Lets long texts wait where they are encoded, and knows which texts came so far."""

    def __init__(self, served, monkeypatch, least: int = 1000) -> None:
        tokenizer = served.service.model.llm.tokenizer
        self.came: list[str] = []
        self.open = threading.Event()
        encode = tokenizer.encode

        def wait(text, **more):
            self.came.append(text)
            assert len(text) < least or self.open.wait(60)
            return encode(text, **more)

        monkeypatch.setattr(tokenizer, "encode", wait)


@pytest.fixture
def gate(served, monkeypatch):
    made = Gate(served, monkeypatch)
    yield made
    made.open.set()


def test_a_prompt_that_cannot_fit_is_not_encoded(served, gate):
    long = "1" * 900_000
    for answer, param in (
        (served.complete(prompt=long, max_tokens=1), "prompt"),
        (served.complete(prompt=["a", long], max_tokens=1), "prompt"),
        (served.chat(messages=[{"role": "user", "content": long}]), "messages"),
    ):
        message = refused(answer, 400, param, "context_length_exceeded")
        assert "at least" in message
        assert len(message) < 300
    assert not [text for text in gate.came if len(text) > 1000]


def test_short_requests_do_not_wait_for_long_ones(served, gate):
    with served.ask_only(**LONG):
        until(lambda: LONG["prompt"] in gate.came)
        assert served.complete(**SHORT).status_code == 200
        assert served.chat(messages=[{"role": "user", "content": "a"}], max_tokens=1).is_success


def test_who_leaves_before_the_prompt_is_encoded_is_forgotten(served, gate, capsys):
    model = served.service.model
    first = served.ask_only(**LONG)
    until(lambda: LONG["prompt"] in gate.came)
    others = [served.ask_only(prompt=f"{i} " * 30_000, max_tokens=1) for i in range(8)]
    until(lambda: model._reserved == 9)
    for one in (first, *others):
        one.close()
    until(lambda: model._reserved == 0)
    gate.open.set()
    assert served.complete(**LONG, cache="private").status_code == 400  # after all before it
    assert [text for text in gate.came if text[0] in "2345678"] == []


def test_who_leaves_before_the_queue_is_logged_as_gone(monkeypatch, capsys):
    with serving(quiet=False) as served:
        gate = Gate(served, monkeypatch)
        with served.ask_only(**LONG):
            until(lambda: LONG["prompt"] in gate.came)
        until(lambda: '"status": 499' in capsys.readouterr().err)
        gate.open.set()
        assert 'http_requests_total{status="499"} 1.0' in served.http.get("/metrics").text


def test_work_in_a_lane_does_not_hold_up_the_process():
    program = """
import threading
from types import SimpleNamespace
from trtla.llm.preparing import Preparing

preparing, begun = Preparing(), threading.Event()
preparing.submit("chat", lambda: (begun.set(), threading.Event().wait(600)))
assert begun.wait(60)
preparing.stop()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_lanes_that_begin_while_others_are_stopped_do_no_harm(monkeypatch):
    """The model's own thread begins the lane of conversations when it is open."""
    lanes = Preparing()
    assert lanes.submit("texts", lambda: 1).result(60) == 1
    work = lanes._lanes["texts"].work

    def put(task):
        lanes.submit("chat", lambda: 2)
        work.put(task)

    monkeypatch.setattr(lanes._lanes["texts"], "work", SimpleNamespace(put=put))
    lanes.stop()
    assert lanes.submit("chat", lambda: 3).result(60) == 3
    monkeypatch.undo()
    lanes.stop()
