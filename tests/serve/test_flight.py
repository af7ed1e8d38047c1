"""Texts in flight: clients that go away, time that runs out, models that fail, servers that end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest

from tests.support.served import (
    LONG,
    SHIPPED,
    SHORT,
    open_shipped,
    server_process,
    serving,
    slow_down,
    until,
)
from trtla import SamplingParams
from trtla.api.errors import ApiError
from trtla.llm.prompt import PromptRequest
from trtla.runtime.request import Output
from trtla.runtime.stats import RequestStats
from trtla.serve.generation import AsyncGeneration, within
from trtla.serve.log import RequestLog
from trtla.serve.server import Service, bind
from trtla.settings.serving import ServeSettings

UNREAD = {"prompt": "def f(", "n": 32, "temperature": 1, "seed": 1, "pieces": True, "stream": True,
          "receive_buffer": 2048}  # fmt: skip


def empty(served) -> bool:
    stats = served.stats()
    return stats.running == stats.waiting == 0 and stats.kv_cache_usage == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(served, stream, monkeypatch):
    slow_down(served, monkeypatch)
    before = served.stats().new_tokens
    with served.ask_only(**LONG, stream=stream):
        until(lambda: served.stats().running)
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
    ways = [chance.choice(["whole", "whole", "stream", "stream", "leave"]) for _ in asked]

    def ask(body, way) -> str | None:
        if way == "whole":
            return served.complete(**body).json()["choices"][0]["text"]
        text = ""
        stream = {**body, "stream": True}
        with served.http.stream("POST", "/v1/completions", json=stream) as one:
            for line in one.iter_lines():
                if way == "leave":
                    return None
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(12) as clients:
        texts = list(clients.map(ask, asked, ways))
    until(lambda: empty(served))
    for body, text in zip(asked, texts, strict=True):
        how = (body["prompt"], body["max_tokens"], float(body["temperature"]), body["seed"])
        assert text is None or text == plain(*how)


def test_a_request_ends_when_its_time_is_over(monkeypatch):
    with serving(request_timeout=2) as served:
        slow_down(served, monkeypatch)
        answer = served.complete(**LONG)
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        with served.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as one:
            events = [line for line in one.iter_lines() if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_timeout"
        until(lambda: empty(served))


def test_a_text_that_comes_with_the_end_of_its_time_is_sent():
    with open_shipped() as llm:
        (answer,) = llm.answers(0, PromptRequest("one", "def f(", SamplingParams(9)))
        text, id_ = AsyncGeneration([answer], time.monotonic(), 1.0), answer.request.request_id
        ids = tuple(llm.tokenizer.encode("hello world", special=False))

    async def read() -> None:
        text.put(id_, Output(id_, ids, None, RequestStats()))
        text.put(id_, Output(id_, (), "timed_out", RequestStats(), start=len(ids)))
        assert "".join(chunk.text for chunk in await text.next()).startswith("hello")
        with pytest.raises(ApiError, match="1 s"):
            await text.next()

    asyncio.run(read())


@pytest.mark.parametrize("turns", range(4))
def test_work_that_ends_as_it_is_cancelled_is_cancelled(turns):
    """`asyncio.wait_for` would forget it before Python 3.12, and a text be written for nobody."""

    async def work() -> None:
        ended = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await ended

        waiting = asyncio.ensure_future(within(wait(), 60.0))
        await asyncio.sleep(0.01)
        ended.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        done = waiting.done()
        waiting.cancel()
        result = await asyncio.gather(waiting, return_exceptions=True)
        assert result == [None] if done else isinstance(result[0], asyncio.CancelledError)

    asyncio.run(work())


def test_times_between_tokens_are_counted_in_streams_and_whole_answers(served):
    def gaps() -> tuple[float, float]:
        lines = served.http.get("/metrics").text.splitlines()
        named = dict(
            line.rsplit(" ", 1) for line in lines if "inter_token_latency_seconds_" in line
        )
        count, total = (
            named[f"trtla_inter_token_latency_seconds_{one}"] for one in ("count", "sum")
        )
        return float(count), float(total)

    for stream in (True, False):
        before = gaps()
        served.complete(prompt="def f(", max_tokens=90, seed=1, drafter="none", stream=stream)
        until(lambda: empty(served))
        count, total = (now - then for now, then in zip(gaps(), before, strict=True))
        assert 1 <= count <= 89  # those that come with the first token have no time
        assert total > 0


def counted(served) -> list[str]:
    counts = served.http.get("/metrics").text.splitlines()
    return [one for one in counts if one.startswith("trtla_http_requests_total")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_is_counted_as_failed(capsys, stream, monkeypatch):
    with serving(request_timeout=2, quiet=False) as served:
        slow_down(served, monkeypatch)
        served.complete(**LONG, stream=stream)
        wanted = ['trtla_http_requests_total{status="504"} 1.0']
        until(lambda: counted(served) == wanted)  # a moment after the answer
    (line,) = [json.loads(x) for x in capsys.readouterr().err.splitlines() if "completions" in x]
    assert (line["status"], line["code"]) == (504, "request_timeout")


def test_a_client_that_does_not_read_is_cut_off(monkeypatch):
    """By a clock that a test sets: it is cut off when its time is over, and not before."""
    ahead = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr("trtla.serve.responses.time", clock)
    for name in ("KEEP_ALIVE_S", "_LOOK_EVERY_S"):
        monkeypatch.setattr(f"trtla.serve.responses.{name}", 0.1)
    body = {**UNREAD, "max_tokens": 1500}
    with serving(request_timeout=600, send_buffer=4096) as served, served.ask_only(**body):
        connections = served.service.server.server_state.connections
        until(lambda: any(one.flow.write_paused for one in tuple(connections)))
        ahead[0] = 600 + 60
        until(lambda: not connections)
        until(lambda: empty(served))


def test_a_client_that_does_not_read_cannot_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("trtla.serve.server.LINGER_S", 0.3)
    with ExitStack() as clients, serving(send_buffer=4096) as served:
        clients.enter_context(served.ask_only(**UNREAD, max_tokens=24))
        until(lambda: served.stats().new_tokens > 32)
        until(lambda: not served.service.model.num_in_flight)
        # leaving the block waits for the server's end


def test_a_stream_that_waits_is_kept_alive(monkeypatch):
    for name in ("KEEP_ALIVE_S", "_LOOK_EVERY_S"):
        monkeypatch.setattr(f"trtla.serve.responses.{name}", 0.05)
    with serving(lambda: open_shipped(max_batch_size=1)) as served:
        slow_down(served, monkeypatch)
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


def test_a_server_takes_connections_once_its_model_is_open():
    settings, log = ServeSettings(port=0), RequestLog(as_json=True, quiet=True)
    with bind(settings) as listening:
        address = listening.getsockname()[:2]

        def open_watched():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            return open_shipped()

        def ready(*_):
            socket.create_connection(address).close()
            service.end()

        service = Service(settings, (), open_watched, "tiny", log, ready)
        asyncio.run(service.run(listening))
    assert service.exit_code == 0


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


def test_a_model_that_is_gone_answers_everybody_who_waits(capsys, monkeypatch):
    with serving() as served:
        slow_down(served, monkeypatch)
        with ThreadPoolExecutor(4) as clients:
            waiting = [clients.submit(served.complete, **LONG) for _ in range(4)]
            until(lambda: served.service.model.num_in_flight == 4)
            Failing(served.service.model.llm, 99)
            answers = [one.result(120) for one in waiting]
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


HELD = """
import sys, threading
from trtla.cli import main
from trtla.runtime.loop.executor import TorchExecutor
from trtla.serve.server import Service
forever = sys.argv.pop(1) == "2"
drained, steps, poll, drain = threading.Event(), [], TorchExecutor.poll, Service._drain
def held(self, *given, **named):
    steps.append(1)
    if len(steps) > 20:
        drained.wait()
    return poll(self, *given, **named)
def draining(self):
    if not forever:
        drained.set()
    return drain(self)
TorchExecutor.poll, Service._drain = held, draining
main()
"""
"""A server whose texts stand still until a signal has come, or for ever."""


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("signals", [1, 2])
def test_the_first_signal_drains_and_the_second_does_not(plain, signals):
    with server_process("-c", HELD, str(signals), "serve", "-m", SHIPPED) as (process, address):
        asked = {**LONG, "max_tokens": 60, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=120) as one:
            lines = one.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            assert any("a second signal stops at once" in line for line in process.stderr)
            if signals == 2:
                process.send_signal(signal.SIGTERM)
                assert process.wait(120) == 128 + signal.SIGTERM
                return
            texts = [json.loads(x[6:])["choices"][0]["text"] for x in (first, *lines) if "{" in x]
        assert process.wait(120) == 0
        assert plain("def f(", 60) == "".join(texts)


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
    until(lambda: empty(served) and served.service.model.num_in_flight == 0)
