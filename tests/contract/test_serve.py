"""`trtla serve` on an engine of TensorRT-LLM, run by the stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chat_templates import with_template
from tests.support.command import trtla
from tests.support.ranks import free_port
from tests.support.served import Served, refused, serving
from tests.support.standin import Standin
from tests.support.standin_engines import build
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.request import Output

pytestmark = pytest.mark.usefixtures("fake_gpu")
PROMPTS = ["def read(path):\n    ", "To be, or not to be, that is "]
CHAT = [{"role": "user", "content": "ab"}]


@pytest.fixture
def engine(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "2000")
    return build(standin, tiny_checkpoint, tmp_path / "engine")


@pytest.fixture
def flags() -> tuple[str, ...]:
    return ()


@pytest.fixture
def template() -> str:
    return ""


@pytest.fixture
def served(
    engine: Path,
    tiny_model: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Served]:
    """The command's own way to open the engine, in a server of this process."""
    opened: list[Callable[[], LLM]] = []

    def run(settings: Any, open_model: Callable[[], LLM], *more: Any) -> int:
        opened.append(open_model)
        assert more[-1] is True, "its constructor lets no Python run"
        return 0

    monkeypatch.setattr("trtla.serve.server.serve", run)
    folder = with_template(tiny_model, tmp_path / "chat", template) if template else tiny_model
    files = ("--engine-dir", engine, "--tokenizer-dir", folder)
    assert trtla("serve", *files, "--lookahead", "4,4,4", *flags).code == 0
    with serving(*opened) as one:
        yield one


def streamed(served: Served, **body: Any) -> str:
    asked = {**body, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=asked) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line[:7] == "data: {"]
    return "".join(one["choices"][0]["text"] for one in events)


def test_answers_and_streams_are_the_texts_of_the_library(
    engine: Path, tiny_model: Path, served: Served
) -> None:
    with LLM(engine, tokenizer_dir=tiny_model, lookahead=LookaheadConfig(4, 4, 4)) as llm:
        texts = [done.text for done in llm.generate(PROMPTS, SamplingParams(12))]
    answer = served.complete(prompt=PROMPTS, max_tokens=12, metrics=True).json()
    assert [one["text"] for one in answer["choices"]] == texts
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["metrics"]["tokens_per_step"] > 1
    assert [streamed(served, prompt=one, max_tokens=12) for one in PROMPTS] == texts
    small = served.complete(prompt=PROMPTS[0], max_tokens=12, lookahead=[2, 2, 2])
    assert small.json()["choices"][0]["text"] == texts[0]
    ended = served.complete(prompt=PROMPTS[0], max_tokens=12, stop=texts[0][3]).json()
    assert texts[0].startswith(ended["choices"][0]["text"])
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert "trtla_request_success_total" in served.http.get("/metrics").text


LACKING = {
    "temperature": 0.7,
    "logprobs": 2,
    "lookahead": "auto",
    "drafter": "ngram",
    "gamma": 3,
    "prediction": {"type": "content", "content": "ab"},
    "repetition_penalty": 1.2,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "logit_bias": {"5": 1},
    "min_p": 0.1,
}


def test_what_the_engine_lacks_is_refused_by_its_name(served: Served) -> None:
    for field, value in LACKING.items():
        answer = served.complete(prompt="ab", max_tokens=4, **{field: value})
        assert answer.status_code == 400, field
        error = answer.json()["error"]
        assert error["param"] == field
        assert f"omit {field}" in error["message"]
        assert "--" not in error["message"], "a client has no flags"


@pytest.mark.parametrize("flags", [("--force-greedy",)])
def test_sampled_requests_can_be_answered_greedily(served: Served) -> None:
    greedy = served.complete(prompt=PROMPTS[0], max_tokens=12).json()
    sampled = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}
    answer = served.complete(prompt=PROMPTS[0], max_tokens=12, **sampled)
    assert answer.json()["choices"] == greedy["choices"]


def test_a_model_without_a_template_has_no_chats(served: Served, tiny_model: Path) -> None:
    answer = served.chat(messages=CHAT, max_tokens=4)
    assert answer.status_code == 400
    assert "/v1/completions" in answer.json()["error"]["message"]
    assert str(tiny_model) not in answer.text  # where its files are is nobody's business


@pytest.mark.parametrize("template", ["{{ tools }}<tool_call>{{ messages[0].content }}"])
def test_tools_are_recognised_and_not_forced(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    asked = {"messages": CHAT, "max_tokens": 4, "tools": tools}
    free, forced = served.chat(**asked), served.chat(**asked, tool_choice="required")
    assert free.json()["choices"][0]["message"]["content"]
    assert "use auto" in refused(forced, 400, "tool_choice")


def gauges(served: Served) -> dict[str, float]:
    lines = served.http.get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line[0] != "#" and "{" not in line)
    return {name.removeprefix("trtla_"): float(value) for name, value in pairs}


def standing_still(served: Served, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let texts stand still after a few steps, until the event is set."""
    executor, goes_on, steps = served.service.model.llm._executor, threading.Event(), count(1)
    poll = executor.poll

    def held(timeout: float | None = None) -> list[Output]:
        stands = next(steps) > 3
        while stands and not goes_on.wait(0.01):
            if executor.interrupted():
                return []
        return poll(timeout)

    monkeypatch.setattr(executor, "poll", held)
    return goes_on


UNKNOWN = ("spec_decode_num_draft_tokens_total", "prefix_cache_hits_total")


def test_figures_are_the_librarys_and_what_it_does_not_tell_is_absent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero would be a fact: drafts accepted over drafts fed would divide by it."""
    before = gauges(served)
    assert not {"num_requests_running", *UNKNOWN} & before.keys(), "nothing has run"
    body = {"prompt": PROMPTS[0], "max_tokens": 100, "stream": True}
    goes_on = standing_still(served, monkeypatch)
    with served.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        now = gauges(served)
        goes_on.set()
        list(lines)
    assert now["num_requests_running"] == 1
    assert 0 < now["kv_cache_usage_perc"] <= 1
    after = gauges(served)
    assert (after["num_requests_running"], after["num_requests_waiting"]) == (0, 0)
    assert after["kv_cache_usage_perc"] == 0
    assert after["spec_decode_num_accepted_tokens_total"] > 0
    assert not [name for name in UNKNOWN if name in after]


@pytest.fixture
def loading(
    engine: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server, as a program, whose engine loads without letting Python run.

    It does so until the pipe `loading` is opened for writing.
    """
    os.mkfifo(tmp_path / "loading")
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_LOADING", str(tmp_path / "loading"))
    port = free_port()
    asked = ("serve", "-m", engine, "--tokenizer-dir", tiny_model, "--lookahead", "4,4,4")
    command = [sys.executable, "-m", "trtla", *map(str, asked), "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stderr=log, text=True)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        yield server, http
    server.kill()
    server.wait()


def health(http: httpx.Client) -> int:
    """0: nothing listens yet."""
    try:
        return http.get("/health").status_code
    except httpx.ConnectError:
        return 0


def polled(http: httpx.Client, until: Callable[[list[int]], bool]) -> list[int]:
    """The answers, ten a second, up to the one that is waited for."""
    found: list[int] = []
    while not until(found):
        found.append(health(http))
        time.sleep(0.1)
    return found


@pytest.mark.deep
def test_a_server_listens_once_its_engine_is_loaded(
    loading: tuple[subprocess.Popen[str], httpx.Client], tmp_path: Path
) -> None:
    server, http = loading
    assert set(polled(http, lambda found: len(found) == 10)) == {0}
    (tmp_path / "loading").write_text("")
    polled(http, lambda found: found[-1:] == [200])
    done = http.post("/v1/completions", json={"prompt": "abcdefgh", "max_tokens": 4})
    assert done.status_code == 200, done.text
    server.terminate()
    assert server.wait(120) == 0, "a signal drains now"


@pytest.mark.deep
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_loads(
    loading: tuple[subprocess.Popen[str], httpx.Client], name: signal.Signals, tmp_path: Path
) -> None:
    server, http = loading
    log = tmp_path / "log"
    polled(http, lambda found: len(found) > 8 and "loading" in log.read_text())
    server.send_signal(name)
    assert server.wait(120) in (-name, 130), "the engine loads indefinitely"
