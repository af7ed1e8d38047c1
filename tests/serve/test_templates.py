"""Chat templates that do not end, take all memory or fail: they cost one request, no server."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from tests.support.chat_templates import CHATML, LLAMA_3, NO_SYSTEM, with_template
from tests.support.served import SHIPPED, SHORT, refused, server_process, serving, until
from trtla import LLM
from trtla.api.errors import refused as api_error
from trtla.errors import UsageError
from trtla.llm.text import Tokenizer

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HUNGRY = "{% set a = 'a' * 9999999999 %}{{ a }}"
LONG_TEXT = "{{ 'a' * 40000000 }}"
SAYING = "{{ raise_exception('not today') }}"
FILLING = (
    "{% if messages[0]['content'] == 'x' %}" + ENDLESS + "{% endif %}{{ messages[0]['content'] }}"
)
HELLO = [{"role": "user", "content": "hello"}]
TALK = [*HELLO, {"role": "assistant", "content": "日本 \n"}, {"role": "user", "content": " b "}]


def opened(tmp_path, template):
    return partial(LLM, with_template(SHIPPED, tmp_path, template), max_batch_size=2)


@pytest.mark.parametrize("template", [CHATML, LLAMA_3, NO_SYSTEM])
def test_another_process_renders_as_this_one(tmp_path, template):
    tokenizer = Tokenizer(with_template(SHIPPED, tmp_path, template))
    known = tokenizer.chat_text(TALK)
    apart = tokenizer.render_in_process(60)
    try:
        assert [tokenizer.chat_text(TALK) for _ in range(3)] == [known] * 3
    finally:
        apart.close()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (HUNGRY, "it takes too much memory"),
        (LONG_TEXT, "it makes a text of 40000000 characters"),
        (SAYING, "not today"),
    ],
    ids=["hungry", "long", "saying"],
)
def test_a_template_that_fails_costs_one_request(tmp_path, template, said):
    with serving(opened(tmp_path, template)) as served:
        for _ in range(2):
            assert said in refused(served.chat(messages=HELLO, max_tokens=1), 400, "messages")
        assert served.complete(**SHORT).status_code == 200
        assert served.http.get("/health").status_code == 200


def test_a_refused_conversation_is_sent_where_a_client_can_go(tmp_path):
    tokenizer = Tokenizer(with_template(SHIPPED, tmp_path, SAYING))
    with pytest.raises(UsageError) as caught:
        tokenizer.prompt_ids(HELLO)
    error = caught.value
    assert api_error(error, "messages").message.endswith("or go without: /v1/completions")
    assert str(error).endswith("or go without: chat=False")
    assert error.hint.endswith("or go without: --no-chat")


@pytest.mark.deep
def test_after_a_conversation_that_does_not_end_others_do(tmp_path, monkeypatch):
    monkeypatch.setattr("trtla.serve.generation._RENDERING_S", 4.0)
    with serving(opened(tmp_path, FILLING)) as served:
        for text, status in (("x", 400), ("a", 200), ("x", 400), ("a", 200)):
            asked = [{"role": "user", "content": text}]
            answer = served.chat(messages=asked, max_tokens=1)
            assert answer.status_code == status
            assert ("it took more than 4 s" in answer.text) == (status == 400)
            assert ("start with another --chat-template" in answer.text) == (status == 400)
        assert served.complete(**SHORT).status_code == 200
        assert served.http.get("/health").status_code == 200


def test_a_renderer_that_is_killed_is_started_again(tmp_path):
    with serving(opened(tmp_path, CHATML)) as served:
        assert served.chat(messages=HELLO, max_tokens=1).status_code == 200
        apart = served.service.model._templates
        first = apart._process
        first.kill()
        until(lambda: first.poll() is not None)
        assert served.chat(messages=HELLO, max_tokens=1).status_code == 200
        second = apart._process
        assert second.pid != first.pid
    assert second.returncode == -signal.SIGKILL


def test_a_renderer_that_is_lost_is_no_fault_of_the_request(tmp_path, monkeypatch):
    monkeypatch.setattr("trtla.serve.generation._RENDERING_S", 300.0)
    with serving(opened(tmp_path, FILLING)) as served, ThreadPoolExecutor(1) as pool:
        said, fine = ([{"role": "user", "content": text}] for text in "xa")
        assert served.chat(messages=fine, max_tokens=1).status_code == 200
        answer = pool.submit(served.chat, messages=said, max_tokens=1)
        apart = served.service.model._templates
        until(lambda: apart._lock.locked())
        apart._process.kill()
        assert "ask again" in refused(answer.result(), 503, code="renderer_lost")
        assert answer.result().headers["Retry-After"] == "1"
        assert served.chat(messages=fine, max_tokens=1).status_code == 200


@pytest.mark.deep
def test_a_server_ends_while_a_template_does_not(tmp_path):
    folder = with_template(SHIPPED, tmp_path, ENDLESS)
    with (
        server_process("-m", "trtla", "serve", "-m", folder) as (process, address),
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        body = {"messages": HELLO, "max_tokens": 1}
        with pytest.raises(httpx.TimeoutException):
            http.post("/v1/chat/completions", json=body, timeout=2)
        assert http.post("/v1/completions", json=SHORT).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


STUCK = """
import sys, threading
from trtla.cli import main
from trtla.llm.text import Tokenizer
encode = Tokenizer.encode
def stuck(self, text, **more):
    if text == "stuck":
        threading.Event().wait()
    return encode(self, text, **more)
Tokenizer.encode = stuck
sys.exit(main())
"""


@pytest.mark.deep
def test_a_request_that_is_never_ready_holds_up_neither_health_nor_the_end(tmp_path):
    """What it is that does not end is made up: a text that is encoded for ever."""
    source = ("-c", STUCK, "serve", "-m", SHIPPED, "--request-timeout", "2")
    with (
        server_process(*source) as (process, address),
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        assert http.get("/health").status_code == 200
        asked = http.post("/v1/completions", json={"prompt": "stuck"})
        assert refused(asked, 504, code="request_timeout")
        until(lambda: http.get("/health").status_code == 503)
        assert http.get("/health").json()["error"]["code"] == "stuck"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
