"""Texts in flight: clients that go away, time that runs out, models that fail, servers that end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.support.served import SHIPPED, SHORT, open_shipped, server_process, serving, until

LONG = {"prompt": "def f(", "max_tokens": 1500, "temperature": 0, "seed": 1}
UNREAD = {"prompt": "def f(", "n": 32, "temperature": 1, "seed": 1, "pieces": True, "stream": True,
          "receive_buffer": 2048}  # fmt: skip


def empty(served) -> bool:
    stats = served.stats()
    return stats.running == stats.waiting == 0 and stats.kv_cache_usage == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(served, stream):
    before = served.stats().new_tokens
    with served.ask_only(**LONG, stream=stream):
        until(lambda: served.stats().new_tokens > before)
    until(lambda: empty(served))
    assert served.stats().new_tokens < before + 1500


def test_a_private_request_leaves_nothing_and_finds_nothing(served):
    text = " ".join(f"{i * i % 97}" for i in range(60))

    def found(cache) -> int:
        body = {"prompt": text, "max_tokens": 4, "temperature": 0, "cache": cache}
        usage = served.complete(**body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [found(cache) for cache in ("private", "shared", "private")] == [0, 0, 0]
    assert found("shared") > 0


def test_texts_are_the_same_whatever_runs_beside_them(served, plain):
    """Streams and documents, short and long, sampled and not, drafted in every way; some leave."""
    chance = random.Random(5)
    drafting = [{}, {"lookahead": [3, 3, 3]}, {"drafter": "ngram"}, {"lookahead": [1, 1, 0]}]
    asked = [
        {
            "prompt": chance.choice(["def f(", "import os\n", "class A:\n    def", "x = [1, 2, "]),
            "max_tokens": chance.randint(1, 40),
            "temperature": chance.choice([0, 0.8]),
            "seed": chance.randint(0, 9),
            "cache": chance.choice(["shared", "private"]),
            **chance.choice(drafting),
        }
        for _ in range(40)
    ]

    def ask(body) -> str | None:
        if chance.random() < 0.5:
            return served.complete(**body).json()["choices"][0]["text"]
        text, leave = "", chance.random() < 0.2
        stream = {**body, "stream": True}
        with served.http.stream("POST", "/v1/completions", json=stream) as one:
            for line in one.iter_lines():
                if leave:
                    return None
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(12) as clients:
        texts = list(clients.map(ask, asked))
    until(lambda: empty(served))
    for body, text in zip(asked, texts, strict=True):
        how = (body["prompt"], body["max_tokens"], float(body["temperature"]), body["seed"])
        assert text is None or text == plain(*how)


def test_a_request_ends_when_its_time_is_over():
    slow = {**LONG, "lookahead": [1, 1, 0]}  # drafts that know the text could be in time
    with serving(request_timeout=0.3) as served:
        answer = served.complete(**slow)
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        with served.http.stream("POST", "/v1/completions", json={**slow, "stream": True}) as one:
            events = [line for line in one.iter_lines() if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_timeout"
        assert empty(served)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_is_counted_as_failed(capsys, stream):
    with serving(request_timeout=0.3, quiet=False) as served:
        served.complete(**LONG, lookahead=[1, 1, 0], stream=stream)
        counts = served.http.get("/metrics").text.splitlines()
        found = [one for one in counts if one.startswith("trtla_http_requests_total")]
        assert found == ['trtla_http_requests_total{status="504"} 1.0']
    (line,) = [json.loads(x) for x in capsys.readouterr().err.splitlines() if "completions" in x]
    assert (line["status"], line["code"]) == (504, "request_timeout")


def test_a_client_that_does_not_read_is_cut_off(monkeypatch):
    for name in ("KEEP_ALIVE_S", "_LOOK_EVERY_S", "_GRACE_S"):
        monkeypatch.setattr(f"trtla.serve.responses.{name}", 0.1)
    body = {**UNREAD, "max_tokens": 1500}
    with serving(request_timeout=3, send_buffer=4096) as served, served.ask_only(**body):
        connections = served.service.server.server_state.connections
        until(lambda: served.service.model.num_in_flight)
        until(lambda: not connections)
        assert empty(served)


def test_a_client_that_does_not_read_cannot_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("trtla.serve.server.LINGER_S", 0.3)
    with ExitStack() as clients, serving(send_buffer=4096) as served:
        clients.enter_context(served.ask_only(**UNREAD, max_tokens=60))
        until(lambda: served.stats().new_tokens > 32)
        until(lambda: not served.service.model.num_in_flight)
        # leaving the block waits for the server's end


def test_a_stream_that_waits_is_kept_alive(monkeypatch):
    for name in ("KEEP_ALIVE_S", "_LOOK_EVERY_S"):
        monkeypatch.setattr(f"trtla.serve.responses.{name}", 0.05)
    with serving(lambda: open_shipped(max_batch_size=1)) as served:
        body = {**SHORT, "stream": True}
        with (
            served.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as first,
            served.http.stream("POST", "/v1/completions", json=body) as second,
        ):
            lines = first.iter_lines()
            next(lines)
            waiting = second.iter_lines()
            assert next(waiting) == ": keep-alive"
            lines.close()
            texts = [json.loads(x[6:])["choices"][0]["text"] for x in waiting if "{" in x]
        assert "".join(texts) == served.complete(**SHORT).json()["choices"][0]["text"]


def test_while_the_model_loads_the_server_says_so():
    may_open = threading.Event()

    def open_late():
        may_open.wait(30)
        return open_shipped()

    with serving(open_late, wait=False) as served:
        for answer in (served.http.get("/health"), served.complete(**SHORT)):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "loading"
            assert "Retry-After" in answer.headers
        assert served.http.get("/metrics").status_code == 200
        may_open.set()
        until(lambda: served.http.get("/health").status_code == 200)
        assert served.complete(**SHORT).status_code == 200


class Failing:
    """Makes an executor's steps raise, the first `times` of them that are asked to."""

    def __init__(self, llm, times: int) -> None:
        self.left, self._poll = times, llm._executor.poll
        llm._executor.poll = self

    def __call__(self, timeout=None):
        if self.left:
            self.left -= 1
            raise RuntimeError("the device is gone")
        return self._poll(timeout)


def test_a_step_that_fails_is_done_again(plain):
    with serving() as served:
        Failing(served.service.model.llm, 2)
        assert served.complete(**LONG | {"max_tokens": 12}).json()["choices"][0]["text"] == plain(
            "def f(", 12
        )
        assert served.http.get("/health").status_code == 200


def test_a_model_that_is_gone_answers_everybody_who_waits(capsys):
    with serving() as served:
        with ThreadPoolExecutor(4) as clients:
            waiting = [clients.submit(served.complete, **LONG) for _ in range(4)]
            until(lambda: served.service.model.num_in_flight == 4)
            Failing(served.service.model.llm, 99)
            answers = [one.result(60) for one in waiting]
        assert [one.status_code for one in answers] == [503] * 4
        assert served.http.get("/health").json()["error"]["code"] == "engine_failed"
        assert served.complete(**SHORT).status_code == 503
    assert "the device is gone" in capsys.readouterr().err


def test_one_requests_failure_is_its_own(served, plain, monkeypatch):
    """A stop check that raises, in the middle of a batch."""
    prepare = served.service.model.llm.answers

    def answers(index, one, *more):
        (made,) = prepare(index, one, *more)
        if one.sampling.seed == 666:
            object.__setattr__(made.request, "stop_check", lambda ids: 1 / 0)
        return [made]

    monkeypatch.setattr(served.service.model.llm, "answers", answers)
    with ThreadPoolExecutor(3) as clients:
        bodies = [SHORT, SHORT | {"seed": 666}, SHORT]
        fine, failed, also = clients.map(lambda body: served.complete(**body), bodies)
    assert failed.status_code == 500
    assert fine.json()["choices"][0]["text"] == plain("class A:", 4)
    assert also.json()["choices"][0]["text"] == plain("class A:", 4)


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("signals", [1, 2])
def test_the_first_signal_drains_and_the_second_does_not(plain, signals):
    with server_process("-m", "trtla", "serve", "-m", SHIPPED) as (process, address):
        asked = {**LONG, "max_tokens": 300, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=60) as one:
            lines = one.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            if signals == 2:
                time.sleep(0.1)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 128 + signal.SIGTERM
                return
            texts = [json.loads(x[6:])["choices"][0]["text"] for x in lines if "{" in x]
        assert process.wait(30) == 0
        assert plain("def f(", 300).endswith("".join(texts))
        assert len(texts) > 50


def test_killed_clients_leave_nothing(served):
    code = (
        "import httpx, sys\n"
        "with httpx.stream('POST', sys.argv[1], json={'prompt': 'def f(', 'max_tokens': 1500, "
        "'stream': True, 'temperature': 0}) as one:\n"
        "    for line in one.iter_lines():\n"
        "        print('.', flush=True)\n"
    )
    command = [sys.executable, "-c", code, f"{served.api}/completions"]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    for client in clients:
        client.stdout.readline()
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        client.stdout.close()
    until(lambda: empty(served))
    assert served.service.model.num_in_flight == 0
