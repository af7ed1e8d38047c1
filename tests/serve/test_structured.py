"""Structured answers by OpenAI's, vLLM's and trtla's fields, and what is refused."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event

import pytest
from pydantic import BaseModel

from tests.support.chat_templates import HERMES_TOOLS, with_template
from tests.support.served import SHIPPED, refused, serving
from trtla import LLM
from trtla.llm import grammar_compiling
from trtla.llm.grammars import GrammarCompiler

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema_rs")

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
_FORMAT = {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}
_NONE = {"disable_any_whitespace": True}
_BLANKS = {"json_object": True, "disable_any_whitespace": "yes"}
CHAT = {"messages": HELLO, "max_tokens": 200, "seed": 5, "temperature": 1.0}
TEXT = {"prompt": "x", "max_tokens": 60, "seed": 5, "temperature": 1.0}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    model = with_template(SHIPPED, tmp_path_factory.mktemp("structured"), HERMES_TOOLS)
    with serving(partial(LLM, model, max_batch_size=3)) as one:
        yield one


def said(answer) -> str:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": FORMAT},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"grammar": {"json_schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_an_answer_follows_a_schema_by_any_of_the_fields(served, field):
    text = said(served.chat(**CHAT, **field))
    jsonschema.validate(SCHEMA, json.loads(text))
    assert text == said(served.chat(**CHAT, response_format=FORMAT, lookahead=[1, 1, 0]))


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ({"structured_outputs": {"regex": "[ab]{4}"}}, "[ab]{4}"),
        ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"structured_outputs": {"grammar": 'root ::= "a"+ "b"'}}, "a+b"),
        ({"guided_grammar": 'start: "a" "b"*'}, "ab*"),
        ({"grammar": 'root ::= "a" "b"*'}, "ab*"),
    ],
)
def test_other_grammars_work_for_texts_as_well(served, field, pattern):
    assert re.fullmatch(pattern, said(served.complete(**TEXT, **field)))


def test_a_stream_says_the_same_as_a_whole_answer(served):
    whole = said(served.chat(**CHAT, response_format=FORMAT))
    lines = served.chat(**CHAT, response_format=FORMAT, stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in events) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    cut = served.chat(**{**CHAT, "max_tokens": 3}, response_format=FORMAT).json()["choices"][0]
    assert cut["finish_reason"] == "length"


def test_several_choices_each_follow_it(served):
    answer = served.chat(**CHAT, n=3, response_format=FORMAT).json()
    texts = [one["message"]["content"] for one in answer["choices"]]
    for text in texts:
        jsonschema.validate(SCHEMA, json.loads(text))


class Pet(BaseModel):
    name: str
    age: int


def test_openais_client_parses_what_it_gets(served):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=served.api, api_key="none")
    answer = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Pet, seed=3, temperature=1.0, max_tokens=300
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, Pet)
    turns = [*HELLO, message.model_dump(warnings=False), *HELLO]  # with its `parsed`
    assert client.chat.completions.create(model="tiny", messages=turns, max_tokens=2).choices


def test_langchains_client_parses_what_it_gets(served):
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        base_url=served.api, api_key="none", model="tiny", seed=3, temperature=1.0, max_tokens=300
    )
    pet = chat.with_structured_output(Pet, method="json_schema").invoke("hello")
    assert isinstance(pet, Pet)


def test_settings_of_vllm_that_are_the_case_anyway_are_taken(served):
    defaults = {"disable_fallback": False, "disable_any_whitespace": False, "regex": None}
    for value in (False, True):
        more = {**defaults, "disable_additional_properties": value, "json_object": False}
        text = said(served.chat(**CHAT, structured_outputs={"json": SCHEMA, **more}))
        assert text == said(served.chat(**CHAT, guided_json=SCHEMA))


def test_keywords_that_cannot_be_kept_to_are_ignored_unless_strict(served):
    schema = {**SCHEMA, "dependentRequired": {"name": ["born"]}}
    for strict in ({}, {"strict": True}, {"strict": None}):
        how = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **strict}}
        refusal = refused(served.chat(**CHAT, response_format=how), 400, "response_format")
        assert 'no text can be kept to its keyword "dependentRequired"' in refusal
    how["json_schema"]["strict"] = False
    for one in (schema, json.dumps(schema), {**schema, "x-guidance": {"coerce_one_of": True}}):
        how["json_schema"]["schema"] = one
        text = said(served.chat(**CHAT, response_format=how))
        assert text == said(served.chat(**CHAT, guided_json=SCHEMA))


@pytest.mark.parametrize("key", ["json", "json_object"])
def test_blanks_in_json_can_be_left_out(served, key):
    rule = {key: SCHEMA if key == "json" else True}
    text = {
        field: said(served.chat(**CHAT, structured_outputs={**rule, field: value}))
        for field, value in (("disable_any_whitespace", True), ("whitespace_pattern", ""))
    }
    assert len(set(text.values())) == 1
    outside = re.sub(r'"(?:[^"\\]|\\.)*"?', "", text["whitespace_pattern"])
    assert re.search(r"\s", outside) is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "use text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "has no schema"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format", "x is not supp"),
        ({"json_schema": SCHEMA}, "json_schema", "use response_format"),
        ({"enable_thinking": False}, "enable_thinking", "use chat_template_kwargs"),
        ({"structured_outputs": {"jsno": {}}}, "structured_outputs", "did you mean json"),
        ({"structured_outputs": {}}, "structured_outputs", "give exactly one"),
        ({"structured_outputs": _BLANKS}, "structured_outputs", "give true or false"),
        ({"structured_outputs": {"regex": "a", **_NONE}}, "structured_outputs", "is for JSON"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "exclude each other"),
        ({"guided_choice": []}, "guided_choice", "not a list of texts"),
        ({"guided_regex": "[a"}, "guided_regex", "cannot be used"),
        ({"response_format": _FORMAT}, "response_format", "cannot be used"),
        ({"grammar": {"json_schema": {"$ref": "http://x.test/s"}}}, "grammar", "cannot be used"),
        ({"guided_regex": "a" * 70_000}, "guided_regex", "has 70000 characters, above 65536"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "grammar"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(served, fields, param, words):
    unknown = param in ("json_schema", "enable_thinking")
    code = "unsupported_parameter" if unknown else "invalid_parameter"
    assert words in refused(served.chat(**CHAT, **fields), 400, param, code)


CATASTROPHIC = [
    "(a|a)*" * 200 + "b",
    "(?:[a-z]{1,500}[0-9]{1,500}){1,500}",
    "(.*a){60}",
]


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_grammar_that_takes_long_delays_no_other_request(served, pattern):
    ask = {"prompt": "def f(", "max_tokens": 4, "temperature": 0}
    served.complete(**ask)
    with ThreadPoolExecutor(1) as pool:
        dear = pool.submit(served.complete, **TEXT, guided_regex=pattern)
        started, count = time.monotonic(), 0
        while not dear.done() and time.monotonic() - started < 60:
            assert served.complete(**ask).status_code == 200
            count += 1
        answer = dear.result(60)
    assert answer.status_code in (200, 400)
    assert count


def test_a_grammar_that_gives_up_fails_its_request_alone(served, capfd, monkeypatch):
    for limit in ("STEP_FUEL", "AMPLE_FUEL"):
        monkeypatch.setattr(grammar_compiling, limit, 200_000)
    ask = {"prompt": "def f(", "max_tokens": 40, "temperature": 0}
    alone = said(served.complete(**ask))
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(served.complete, **ask)
        failed = served.complete(**TEXT, guided_regex="(a|a)*" * 2000 + "b")
        assert said(beside.result(60)) == alone
    assert "the grammar allows nothing as output token" in refused(failed, 400, "guided_regex")
    lines = served.complete(**TEXT, guided_regex="(a|a)*" * 2000 + "b", stream=True).text
    error = json.loads(lines.split("data: ")[-1])["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "guided_regex")
    assert "a step failed" not in capfd.readouterr().err


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize("field", [{"guided_regex": "[ab]{3}c"}, {"tools": TOOLS}])
def test_small_requests_do_not_wait_for_a_grammar(served, monkeypatch, field):
    with waiting(monkeypatch, served, field):
        assert served.chat(messages=HELLO, max_tokens=2).status_code == 200


@contextmanager
def waiting(monkeypatch, served, field):
    """Hold the compilation of the first request's grammar meanwhile."""
    begun, goes_on = Event(), Event()
    start = GrammarCompiler.start

    def slowly(compiler, grammar):
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(60)
        return start(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "start", slowly)
    with ThreadPoolExecutor(1) as pool:
        dear = pool.submit(served.chat, **CHAT, **field)
        try:
            assert begun.wait(60)
            yield
            assert not dear.done()
        finally:
            goes_on.set()
        assert dear.result(60).status_code == 200


@pytest.mark.parametrize("schema", [{"enum": ["ab" * 1500]}, {"multipleOf": 3}])
def test_small_grammars_do_not_wait_for_dear_ones(served, monkeypatch, schema):
    with waiting(monkeypatch, served, {"guided_json": schema}):
        assert said(served.complete(**TEXT, guided_regex="[ab]c")) in ("ac", "bc")


def test_small_tools_are_compiled_at_once(served, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)  # which dear grammars are tried by
    assert served.chat(**CHAT, tools=TOOLS, tool_choice="required").status_code == 200


def test_a_server_prepares_for_grammars_before_any_comes(monkeypatch):
    prepared = Event()
    prepare = GrammarCompiler.prepare

    def noted(compiler):
        tables = prepare(compiler)
        prepared.set()
        return tables

    monkeypatch.setattr(GrammarCompiler, "prepare", noted)
    with serving(partial(LLM, SHIPPED)):
        assert prepared.wait(60)
