"""What the server refuses: bodies, fields, keys, origins, sizes; by name, and never with 500."""

from __future__ import annotations

import json
import re
import socket
from contextlib import contextmanager
from functools import partial
from socket import gethostname

import pytest

from tests.support.served import ASK, JSON, LONG, refused, serving, slow_down, until
from trtla.api.protocol import NEUTRAL

HOST = "host_not_allowed"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", -1, "temperature"),
        ("temperature", "0.5", "temperature"),
        ("temperature", True, "temperature"),
        ("temperature", 2.01, "temperature"),
        ("top_p", 0, "top_p"),
        ("top_k", -2, "top_k"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("n", 129, "n"),
        ("seed", -(2**63) - 1, "seed"),
        ("stop", 7, "stop"),
        ("stop", [""], "stop"),
        ("stop", ["a"] * 17, "stop"),
        ("prompt", [], "prompt"),
        ("prompt", "", "prompt"),
        ("prompt", [[]], "prompt"),
        ("prompt", [99999], "prompt"),
        ("prompt", [1, "a"], "prompt"),
        ("prompt", "\udcff", "prompt"),
        ("stream", 1, "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("pieces", True, "pieces"),
        ("metrics", 3, "metrics"),
        ("lookahead", [7, 7], "lookahead"),
        ("lookahead", [1, 1, 3], "lookahead"),
        ("lookahead", [9, 9, 9], "lookahead"),
        ("lookahead", "fast", "lookahead"),
        ("drafter", "best", "drafter"),
        ("drafter", "draft:/etc/passwd", "drafter"),
        ("cache", "mine", "cache"),
        ("prediction", {"type": "content", "content": 3}, "prediction.content"),
        ("echo", True, "echo"),
        ("best_of", 2, "best_of"),
        ("logit_bias", {"5": 101}, "logit_bias"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("logit_bias", {str(10**9): 1}, "logit_bias"),
        ("frequency_penalty", 2.5, "frequency_penalty"),
        ("presence_penalty", -2.5, "presence_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("min_p", 1.5, "min_p"),
        ("no_such_field", 1, "no_such_field"),
    ],
)
def test_a_field_that_does_not_fit_is_named(served, field, value, param):
    answer = served.http.post(
        "/v1/completions", content=json.dumps({**ASK, field: value}), headers=JSON
    )
    message = refused(answer, 400, param)
    assert not re.search("Input|input should|[Ff]ield required|valid ", message), message
    assert field in message or param == "prompt"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", 2.5, "temperature must be at most 2"),
        ("top_p", 0, "top_p must be above 0"),
        ("temperature", "0.5", "temperature must be a number"),
        ("max_tokens", 1.5, "max_tokens must be a whole number"),
        ("stream", 1, "stream must be true or false"),
        ("logit_bias", [1], "logit_bias must be an object"),
        ("cache", "mine", "cache must be 'shared' or 'private'"),
        ("model", 3, "model must be a text"),
        ("stream_options", 3, "stream_options must be an object"),
    ],
)
def test_a_refusal_says_what_the_field_must_be(served, field, value, said):
    assert refused(served.complete(**{**ASK, field: value}), 400, field) == said


def test_the_hottest_temperature_of_the_api_is_taken(served):
    assert served.complete(**{**ASK, "temperature": 2}).status_code == 200


def test_the_format_text_asks_for_nothing(served):
    assert served.complete(**ASK, response_format={"type": "text"}).status_code == 200


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_field_that_asks_for_nothing_is_taken(served, name):
    for value in (None, *NEUTRAL[name]):
        assert served.complete(**ASK, **{name: value}).status_code == 200


def test_a_mistyped_field_is_guessed(served):
    message = refused(served.complete(**ASK, temprature=1), 400, "temprature")
    assert "did you mean temperature?" in message


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("n_predict", "use max_tokens"),
        ("max_new_tokens", "use max_tokens"),
        ("guided_json_object", "use response_format"),
        ("ebnf", "use guided_grammar"),
        ("chat_template", "start the server with --chat-template"),
        ("format", "use response_format"),
        ("options", "give its settings as fields of the request"),
        ("think", 'use chat_template_kwargs, such as {"enable_thinking": false}'),
        ("min_tokens", "omit it"),  # max_tokens does not serve instead
        ("reasoning_format", "omit it, the model's chat template decides"),
    ],
)
def test_a_field_of_other_servers_is_shown_its_counterpart(served, field, hint):
    message = refused(served.complete(**ASK, **{field: 1}), 400, field)
    assert message == f"{field} is not supported; {hint}"


@pytest.mark.parametrize(
    ("body", "field", "hint"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "max_output_tokens": 9},
         "max_output_tokens", "use max_completion_tokens"),
        ({"input": "a"}, "input", "use messages"),
        ({"input": "a", "truncation": "auto"}, "input", "use messages"),
        ({"messages": [], "truncation": "auto"}, "truncation", "it is a field of /v1/responses"),
        ({"messages": [], "text": {"format": {"type": "text"}}}, "text", "use response_format"),
    ],
)  # fmt: skip
def test_a_field_of_responses_is_shown_its_counterpart_in_chats(served, body, field, hint):
    message = refused(served.chat(**body), 400, field)
    assert message == f"{field} is not supported; {hint}"


def test_an_answer_can_be_sent_back_as_it_is(served):
    asked = [{"role": "user", "content": "def f("}]
    said = served.chat(messages=asked, max_tokens=2).json()["choices"][0]["message"]
    more = {"tool_calls": [], "function_call": None, "audio": None, "annotations": []}
    turns = [*asked, {**said, **more}, *asked]
    assert served.chat(messages=turns, max_tokens=2, top_k=-1).status_code == 200
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    message = refused(served.chat(messages=parts), 400, "messages.0.content.0.type")
    assert "parts of type text" in message


def test_what_a_part_has_too_much_is_named(served):
    part = {"type": "text", "text": "a"}
    for parts, name in (
        ([part, {**part, "cache_control": {"type": "ephemeral"}}], "content.1.cache_control"),
        ([{"type": "text"}], "content.0.text"),
        (7, "content"),
    ):
        answer = served.chat(messages=[{"role": "user", "content": parts}])
        assert f"messages.0.{name} " in refused(answer, 400, f"messages.0.{name}")
    assert served.chat(messages=[{"role": "user", "content": [part]}], max_tokens=1).is_success


def test_a_label_of_the_caller_is_taken(served):
    assert served.complete(**ASK, user="somebody").status_code == 200
    refused(served.complete(**ASK, user=7), 400, "user", "invalid_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"\x00\x01\x02",
        b'{"prompt": [' + b"null," * 200_000 + b"1]}",
        b'{"prompt": [' + b"[]," * 300_000 + b"[1]]}",
    ],
    ids=range(15),
)
def test_a_body_that_is_no_request_is_refused(served, body):
    answer = served.http.post("/v1/completions", content=body, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert served.complete(**ASK).status_code == 200


def test_a_prediction_is_read_as_far_as_it_can_be_long(served):
    """Once for all choices: of one that is longer, or too long to be read in time, too."""
    long = {"type": "content", "content": "def f(x): " * 80_000}
    answer = served.complete(**ASK, n=16, prediction=long)
    assert answer.status_code == 200
    message = refused(
        served.complete(**ASK, prediction=long, lookahead=[3, 3, 3]), 400, "prediction"
    )
    assert "auto" in message


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),  # a base URL without /v1
        ("/v1/chat/completions/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/completions", "did you mean /v1/completions?"),
        ("/v1/completion", "did you mean /v1/completions?"),
        ("/models", "did you mean /v1/models?"),
        ("/responses", "did you mean /v1/responses?"),
        ("/api/generate", "did you mean /v1/completions?"),
        ("/api/tags", "did you mean /v1/models?"),
        ("/v1/", "did you mean /v1/models?"),
        ("/slots", "did you mean /metrics?"),
        ("/v1/embeddings", "/openapi.json lists all routes"),
    ],
)
def test_a_wrong_path_is_shown_the_right_one(served, path, hint):
    said = refused(served.http.post(path, content=json.dumps(ASK), headers=JSON), 404)
    assert said == f"there is nothing at {path}; {hint}"


def test_paths_and_methods(served):
    refused(served.http.get("/v1/embeddings"), 404)
    refused(served.http.get("/v1/completions"), 405)
    assert [served.http.head(path).status_code for path in ("/", "/health")] == [200, 200]
    refused(served.http.get("/page/../../../../etc/passwd"), 404)
    refused(served.http.get("/page/%2e%2e/%2e%2e/server.py"), 404)
    refused(served.complete(model="gpt-4o", **ASK), 404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 400, "content_type"),
        ({"Content-Type": "application/json; charset=latin-1"}, 400, "content_type"),
        ({"Content-Encoding": "gzip"}, 415, "content_encoding"),
    ],
)
def test_headers_that_change_what_the_body_is_are_not_ignored(served, headers, status, code):
    answer = served.http.post(
        "/v1/completions", content=json.dumps(ASK), headers={**JSON, **headers}
    )
    refused(answer, status, code=code)


def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(served):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    both = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    with served.connect(head + both) as one:  # in one piece: no reset by bytes that come later
        said = b"".join(iter(lambda: one.recv(4096), b""))
    assert said.startswith(b"HTTP/1.1 400")
    assert b'"body_length"' in said


def test_the_usual_headers_of_a_body_are_taken(served):
    for more in (
        {"Content-Type": 'application/json; charset="UTF-8"'},
        {"Content-Encoding": "identity"},
    ):
        content = json.dumps(ASK)
        answer = served.http.post("/v1/completions", content=content, headers={**JSON, **more})
        assert answer.status_code == 200


def test_pages_of_other_origins_are_kept_out(served):
    own = served.address
    for origin, host, status in (
        (own, None, 200),
        ("https://evil.example", None, 403),
        ("null", None, 403),
        ("http://evil.example:1", "evil.example:1", 403),
    ):
        headers = {"Origin": origin, **({"Host": host} if host else {})}
        answer = served.http.post("/v1/completions", json=ASK, headers=headers)
        assert answer.status_code == status, origin
    refused(served.http.get("/metrics", headers={"Host": "evil.example"}), 403)


def test_names_that_anybody_may_give_this_address_need_a_key():
    """A page could have its own name lead here, and read what a stranger may."""
    local = ("LOCALHOST", "trtla:80", "box.local.", "trtla.default.svc:80", gethostname())
    own = ("127.0.0.1:8000", "[::1]:8000", *local)
    known = {"host": "0.0.0.0", "allow_origin": ("https://good.example",)}
    with serving(**known) as served:
        for host, status in (
            ("evil.example", 403),
            ("good.example", 200),
            *((o, 200) for o in own),
        ):
            for path in ("/", "/v1/models", "/metrics"):
                assert served.http.get(path, headers={"Host": host}).status_code == status, host
        message = refused(served.http.get("/", headers={"Host": "a.b"}), 403, None, HOST)
        assert "--api-key-file or --allow-origin" in message
        page = {"Host": "box.local:8000", "Origin": "http://box.local:8000"}
        assert served.http.post("/v1/completions", json=ASK, headers=page).status_code == 200
    with serving(keys=(b"one",), host="0.0.0.0") as served:
        named = {"Host": "evil.example", "Authorization": "Bearer one"}
        assert served.http.get("/v1/models", headers=named).status_code == 200


def test_a_proxy_with_a_key_and_probes_may_use_any_name():
    with serving(keys=(b"one",)) as served:
        named = {"Host": "llm.example", "Authorization": "Bearer one"}
        assert served.http.get("/v1/models", headers=named).status_code == 200
    with serving() as served:
        for path in ("/health", "/ping"):
            assert served.http.get(path, headers={"Host": "llm.example"}).status_code == 200
            assert served.http.head(path).status_code == 200
        assert served.http.get("/v1/models", headers={"Host": "localhost.:80"}).status_code == 200


def test_an_origin_can_be_allowed():
    with serving(allow_origin=("https://good.example",)) as served:
        asked = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
        before = served.http.options("/v1/completions", headers=asked)
        assert before.headers["access-control-allow-origin"] == "https://good.example"
        origin = {"Origin": "https://good.example"}
        assert served.http.post("/v1/completions", json=ASK, headers=origin).status_code == 200
        other = {"Origin": "https://evil.example"}
        assert served.http.post("/v1/completions", json=ASK, headers=other).status_code == 403
        private = {"Access-Control-Request-Private-Network": "true"}
        for named, status, answer in ((origin, 200, "true"), (other, 400, None)):
            before = served.http.options("/v1/models", headers={**asked, **private, **named})
            assert before.status_code == status
            assert before.headers.get("access-control-allow-private-network") == answer
        before = served.http.options("/v1/models", headers=asked)
        assert "access-control-allow-private-network" not in before.headers


def test_keys_bodies_and_queues_have_limits(monkeypatch):
    limits = {"max_body": 2000, "max_queue": 0}
    with serving(keys=(b"one", b"two"), **limits) as served:
        for key, status in ((None, 401), ("three", 401), ("one", 200), ("two", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            answer = served.http.post("/v1/completions", json=ASK, headers=headers)
            assert answer.status_code == status
        assert [served.http.get(path).status_code for path in ("/health", "/ping")] == [200, 200]
        refused(served.http.get("/metrics"), 401, code="invalid_api_key")
        served.http.headers["Authorization"] = "Bearer two"
        refused(served.complete(prompt="a" * 3000), 413, code="body_too_large")
        many = served.http.post("/v1/completions", content=iter([b"a" * 1500] * 3), headers=JSON)
        refused(many, 413, code="body_too_large")
        refused(served.complete(prompt=["a"] * 40, max_tokens=1), 400, "n")
        slots = served.service.model.llm.limits.max_batch_size
        slow_down(served, monkeypatch)
        long = {**LONG, "prompt": ["def f("] * slots, "stream": True}
        with served.http.stream("POST", "/v1/completions", json=long) as streamed:
            lines = streamed.iter_lines()  # the connection ends with it
            next(lines)
            busy = served.complete(**ASK)
            refused(busy, 429, code="queue_full")
            assert int(busy.headers["Retry-After"]) >= 1


def test_half_a_request_harms_nobody(served):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    for sent in (
        b"",
        b"\x16\x03\x01junk",
        head,
        head + b"Content-Length: 50\r\n\r\n{",
        b"\r\n" * 99,
    ):
        with served.connect(sent) as one:
            one.shutdown(socket.SHUT_WR)
            while one.recv(1000):
                pass
    assert served.complete(**ASK).status_code == 200
    assert served.service.model.num_in_flight == 0


def read_until(connection, end):
    """Read up to some bytes; the connection must not end before."""
    got = b""
    while end not in got:
        part = connection.recv(1000)
        assert part
        got += part


HEAD_TIMEOUT_S = "trtla.serve.responses.HEAD_TIMEOUT_S"


@contextmanager
def hurried_from_now(served, monkeypatch, sent):
    """A connection that has time to send this, and little time for what follows."""
    connections = served.service.server.server_state.connections
    until(lambda: not connections)
    monkeypatch.setattr(HEAD_TIMEOUT_S, 600.0)
    with served.connect() as one:
        until(lambda: any(known._head_timer for known in tuple(connections)))
        monkeypatch.setattr(HEAD_TIMEOUT_S, 0.1)
        one.sendall(sent)
        yield one


def test_a_connection_that_asks_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(HEAD_TIMEOUT_S, 0.1)
    with serving() as served:
        hurried = partial(hurried_from_now, served, monkeypatch)
        for sent in (b"", b"POST /v1/comple", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "):
            with served.connect(sent) as one:
                assert one.recv(100) == b""
        with hurried(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as one:
            read_until(one, b"ok")
            one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")  # timed too
            assert one.recv(100) == b""
        with hurried(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n") as one:
            read_until(one, b"}")  # it is answered before its body is there
            one.sendall(b"{")
            while one.recv(100):
                pass
        with hurried(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{") as one:
            read_until(one, b"}")
            while one.recv(100):  # nothing more comes of the body
                pass
        monkeypatch.setattr(HEAD_TIMEOUT_S, 600.0)
        assert served.complete(**ASK).status_code == 200
