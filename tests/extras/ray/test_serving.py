"""Two replicas behind one server: texts, streams that go on elsewhere, clients that leave, ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.extras.ray.support import SHIPPED, Server, alive, descendants, serving, wait_until
from trtla import LLM, SamplingParams

pytestmark = pytest.mark.deep

pytest.importorskip("ray.serve", reason="needs Ray: pip install 'trtla[ray]'")

PROMPT = "def read_file(path"
LONG = {"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "seed": 3, "temperature": 0.7}
WORDS = {**LONG, "ignore_eos": False, "guided_regex": "([a-z]{3} ){600}"}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("log") / "log", "--replicas", 2) as server:
        yield server


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SHIPPED) as opened:
        yield opened


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_texts_are_those_of_one_process(served, llm, heat):
    for seed in range(4):
        (plain,) = llm.generate(PROMPT, SamplingParams(24, heat, seed=seed))
        text = served.text(prompt=PROMPT, max_tokens=24, temperature=heat, seed=seed)
        assert text == plain.text


def test_stop_strings_choices_and_log_probabilities(served, llm):
    (plain,) = llm.generate(PROMPT, SamplingParams(24))
    stop = plain.text[6:10]
    done = served.complete(
        prompt=[PROMPT, "import "], max_tokens=24, temperature=0, stop=[stop], n=2, logprobs=2
    )
    texts = [choice["text"] for choice in done["choices"]]
    assert len(texts) == 4
    assert texts[0] == texts[1] == plain.text[: plain.text.index(stop)]
    assert done["choices"][0]["finish_reason"] == "stop"
    assert len(done["choices"][0]["logprobs"]["tokens"]) > 0


def test_what_is_refused_in_one_process_is_refused_here(served):
    answer = served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**6})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("asked", [LONG, WORDS], ids=["any text", "grammar"])
def test_a_stream_goes_on_when_all_replicas_are_killed(served, asked):
    whole = served.text(**asked)
    text, killed, before = "", 0, served.metric("replica_reruns_total")
    body = {**asked, "stream": True, "lookahead": [1, 1, 0]}
    with served.http.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                if not killed:
                    for process in served.replicas():
                        os.kill(process, signal.SIGKILL)
                        killed += 1
    assert killed == 2
    assert text == whole
    assert served.metric("replica_reruns_total") > before
    assert "serve " not in served.log  # nothing of what Ray says itself
    wait_until(lambda: served.metric("replicas") == 2)


def test_a_client_that_leaves_frees_its_place(served):
    body = {**LONG, "stream": True, "max_tokens": 900}
    with served.http.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    wait_until(lambda: served.metric("num_requests_running") == 0)


def test_sigterm_lets_texts_end_and_leaves_no_process(tmp_path):
    with serving(tmp_path / "log", "--replicas", 1) as server:
        below = descendants(server.process.pid) | set(server.replicas())
        assert below
        body = {**LONG, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert server.process.wait(120) == 0
        wait_until(lambda: not alive(below))
        assert "Traceback" not in server.log


def test_a_killed_server_leaves_no_process(tmp_path):
    with serving(tmp_path / "log", "--replicas", 1) as server:
        below = descendants(server.process.pid) | set(server.replicas())
        model = set(server.replicas())
        server.end(signal.SIGKILL)
        wait_until(lambda: not alive(model))
        wait_until(lambda: not alive(below), 150)  # Ray's own agents wait a minute for its head
