"""Calls in tags, as Qwen3-Coder writes them: values by their schemas, exact, forced and cut."""

from __future__ import annotations

import json
from functools import partial

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chat_templates import CHATML, QWEN_CODER_TOOLS, with_template
from tests.support.examples import examples
from tests.support.served import SHIPPED, refused, serving
from trtla import LLM
from trtla.api.tool_calls import CallSplitter
from trtla.api.tool_formats import QWEN_CODER
from trtla.api.tools import Function
from trtla.errors import UsageError
from trtla.llm.grammars import GrammarCompiler
from trtla.llm.text import Tokenizer

SHAPE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer"},
        "part": {"type": "number"},
        "deep": {"type": ["boolean", "null"]},
        "mode": {"enum": ["read", 7, None]},
        "code": {"type": "string", "pattern": "^[a-z/]+$"},
        "short": {"type": "string", "maxLength": 3},
        "spot": {"$ref": "#/$defs/spot"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "any": {},
    },
    "required": ["path", "count"],
    "additionalProperties": False,
    "$defs": {"spot": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
NEEDED = {"path": "p", "count": "1"}


def written(values):
    """A call with these arguments, each as its tag has it."""
    tags = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"


def read(text, parameters=SHAPE):
    """The arguments of a call that comes sign by sign."""
    splitter, calls = CallSplitter(QWEN_CODER, "key", {"f": parameters}), []
    for at, sign in enumerate(text):
        part = splitter.push(sign, last=at == len(text) - 1)
        assert "content" not in part
        calls += part.get("tool_calls", ())
    (call,) = calls
    return json.loads(call["function"]["arguments"])


@pytest.fixture(scope="module")
def allows(tmp_path_factory):
    folder = with_template(SHIPPED, tmp_path_factory.mktemp("tags"), CHATML)
    compiler = GrammarCompiler(Tokenizer(folder), 2048, [0])

    def allowed(text, parameters=SHAPE, **more):
        grammar = QWEN_CODER.grammar(
            [Function(name="f", parameters=parameters, **more)],
            state="answering",
            must=True,
            several=False,
            control=lambda name: None,
        )
        ids = compiler._tokenizer.encode(text, special=False)
        return compiler.start(grammar)().allowed([*ids, 0]) == len(ids) + 1

    return allowed


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("path", "", ""),
        ("path", "\n", "\n"),
        ("path", "def f():\n\n\treturn '\\n'  \n", "def f():\n\n\treturn '\\n'  \n"),
        ("path", " é\u2028\U0001f600 ", " é\u2028\U0001f600 "),
        ("path", "</parameter>", "</parameter>"),
        ("path", "a\n</parameter>\nb <parameter=count>", "a\n</parameter>\nb <parameter=count>"),
        ("path", "</function>\n</tool_call>", "</function>\n</tool_call>"),
        ("path", '{"a": 1}', '{"a": 1}'),
        ("path", "null", "null"),
        ("path", "&lt;", "&lt;"),
        ("count", "-12", -12),
        ("part", "2.50", 2.5),
        ("part", "3", 3),
        ("deep", "true", True),
        ("deep", "False", False),
        ("deep", "None", None),
        ("mode", "read", "read"),
        ("mode", "7", 7),
        ("mode", "null", None),
        ("code", "a/b", "a/b"),
        ("short", "a\n", "a\n"),
        ("spot", '{"x": 4}', {"x": 4}),
        ("tags", '["a", "</parameter>"]', ["a", "</parameter>"]),
        ("note", "null", None),
        ("note", "[1]", "[1]"),
        ("kind", "b", "b"),
        ("any", "42", "42"),
    ],
)
def test_values_are_those_of_their_schemas(allows, key, text, value):
    call = written({**NEEDED, key: text})
    assert allows(call)
    assert read(call) == {"path": "p", "count": 1, key: value}


@pytest.mark.parametrize(
    "values",
    [
        {"path": "p"},
        {"count": "1", "path": "p"},
        {**NEEDED, "count": "01"},
        {**NEEDED, "deep": "yes"},
        {**NEEDED, "mode": "write"},
        {**NEEDED, "code": "A"},
        {**NEEDED, "short": "abcd"},
        {**NEEDED, "kind": "c"},
        {**NEEDED, "other": "1"},
    ],
)
def test_what_the_schema_forbids_is_no_call(allows, values):
    assert not allows(written(values))


@pytest.mark.parametrize(
    ("parameters", "values", "found"),
    [
        ({}, {}, {}),
        ({"additionalProperties": True}, {"a": "1"}, {"a": "1"}),
        ({"properties": {"b": {}}, "additionalProperties": {"type": "integer"}},
         {"b": "1", "a": "1"}, {"b": "1", "a": 1}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"type": "integer"}}}}},
         {"a": "1"}, {"a": 1}),
        ({"anyOf": [{"properties": {"a": {"type": "integer"}}}]}, {"a": "1"}, {"a": 1}),
    ],
)  # fmt: skip
def test_keys_are_those_of_the_schema(allows, parameters, values, found):
    assert allows(written(values), parameters)
    assert not allows(written({**values, "a>b": "1"}), parameters)
    assert read(written(values), parameters) == found


@examples(200)
@given(st.text("ab\n\r\t <>/=\"'\\é\u2028", max_size=12), st.booleans())
def test_any_text_comes_back(text, marked):
    text = text.replace("a", "</parameter>") if marked else text
    assert read(written({"path": text, "count": "1"})) == {"path": text, "count": 1}


ENDS = "</parameter>\n</function>"
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "array", "items": TEXT}, '["a</parameter></function>b"]',
         ["a</parameter></function>b"]),
        ({"type": "array", "items": TEXT}, '["a\\"</parameter> <parameter=b>c"]',
         ['a"</parameter> <parameter=b>c']),
        ({"enum": [["</parameter></function>"]]}, '["</parameter></function>"]',
         ["</parameter></function>"]),
        ({"enum": ["7", 8]}, "7", "7"),
        ({"enum": ["7", 8]}, "8", 8),
        ({"type": ["string", "null"], "enum": ["null", "x"]}, "null", "null"),
        (TEXT, "x</parameter>\u00a0</function>y", "x</parameter>\u00a0</function>y"),
        (WHOLE, "1" * 1000, int("1" * 1000)),
    ],
)  # fmt: skip
def test_what_a_strict_grammar_allows_comes_back(allows, schema, text, value):
    parameters = {"properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    call = written({"a": text})
    assert allows(call, parameters, strict=True)
    assert read(call, parameters) == {"a": value}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, "x</parameter>\r\n</function>y"),
        (TEXT, "x</parameter>\t<parameter=b>y"),
        ({**TEXT, "pattern": "^[a-z]+$", "maxLength": 3}, "abcdef"),
        ({**TEXT, "pattern": "^[a-z]+$", "maxLength": 3}, "12"),
        ({**TEXT, "pattern": r"^\d$"}, "\u0663"),
        ({"allOf": [{"type": "boolean"}, {"const": True}]}, "False"),
    ],
)
def test_what_breaks_a_strict_schema_is_no_call(allows, schema, text):
    parameters = {"properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    assert not allows(written({"a": text}), parameters, strict=True)


def test_a_listed_text_that_ends_early_is_any_text_where_nothing_is_strict(allows):
    parameters = {"properties": {"a": {"enum": [f"x{ENDS}"]}}, "required": ["a"]}
    assert allows(written({"a": "other"}), parameters)


def test_a_strict_function_is_refused_what_tags_cannot_keep(allows):
    for parameters, said in [
        ({"anyOf": [{"properties": {}}]}, "have anyOf"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "have texts with format"),
        ({"properties": {"a": {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]}}},
         "have texts with maxLength"),
        ({"properties": {"a>b": {}}, "additionalProperties": False}, "have the key 'a>b'"),
        ({"properties": {"a": {"anyOf": [TEXT, {**WHOLE, "minimum": 5}]}}}, "texts with minimum"),
        ({"properties": {"a": {"anyOf": [TEXT, {"type": "array", "items": WHOLE}]}}},
         "texts with items"),
        ({"properties": {"a": {"enum": [1, 7], "minimum": 5}}}, "values with minimum"),
        ({"properties": {"a": {"enum": [ENDS]}}}, "have a value with </parameter>"),
        ({"properties": {"a": False}}, "have a key that no value is valid for"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=said):
            allows("", parameters, strict=True)


FILES = {
    "type": "object",
    "properties": {"mode": {"enum": ["r", "w"]}, "lines": {"type": "array", "items": {"enum": [1]},
                   "maxItems": 2}, "text": {"type": "string", "maxLength": 4}},
    "required": ["mode", "lines", "text"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("strict", [True, False])
def test_a_call_is_whole_or_absent_wherever_it_is_cut(tmp_path, strict):
    function = {"name": "open", "parameters": FILES, "strict": strict}
    ask = {"messages": [{"role": "user", "content": "a"}], "temperature": 0.9, "seed": 5}
    ask |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    ask |= {"parallel_tool_calls": False}
    found = set()
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, QWEN_CODER_TOOLS))) as one:
        most = one.chat(**ask, max_tokens=200).json()["usage"]["completion_tokens"]
        assert most < 90
        for count in range(1, most + 1):
            how = {**ask, "max_tokens": count}
            choice = one.chat(**how).json()["choices"][0]
            calls = choice["message"].get("tool_calls", [])
            for call in calls:
                jsonschema_rs.validate(FILES, json.loads(call["function"]["arguments"]))
            assert not choice["message"]["content"]
            assert choice["finish_reason"] == ("length" if count < most else "tool_calls")
            found.add(len(calls))
            lines = one.chat(**how, stream=True).text.splitlines()
            deltas = [json.loads(line[6:])["choices"] for line in lines if "{" in line]
            deltas = [each[0]["delta"] for each in deltas if each]
            assert not any(delta.get("content") for delta in deltas)
            streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert [call["function"] for call in streamed] == [call["function"] for call in calls]
    assert found == {0, 1}


ODD = [
    {"properties": {"a": {"type": "string", "pattern": "("}}},
    {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
    {"properties": {"a": {"type": "string", "pattern": "a\n/"}}},
    {"properties": {"a": {"type": "string", "minLength": "x", "maxLength": None}}},
    {"properties": {"a": {"type": "string", "minLength": 5, "maxLength": 3}}},
    {"properties": {"a": {"type": "string", "minLength": 10**9}}},
    {"properties": {"a": {"enum": []}, "b": {"enum": "x"}, "c": {"type": [[]]}, "d": 7}},
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"$ref": "#/no"}, "b": {"$ref": "http://a"}, "c": {"$ref": 4}}},
    {"properties": 7, "required": "abc"},
    {"required": ["a", 3]},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, 7]},
    {"properties": {"a>b": {}, "": {}}},
    {"properties": {"/": {}, ".*": {}, '"': {}}, "additionalProperties": True},
]
"""Schemas that are hard to keep to, and some that are none."""


def test_an_odd_schema_is_no_fault_of_the_server(tmp_path):
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 30, "temperature": 0}
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, QWEN_CODER_TOOLS))) as one:
        for parameters in ODD:
            for choice in ("auto", "required"):
                function = {"name": "f", "parameters": parameters}
                tools = [{"type": "function", "function": function}]
                answer = one.chat(**ask, tools=tools, tool_choice=choice)
                if choice == "required" and answer.status_code != 200:
                    refused(answer, 400, "tools")
                else:
                    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("parameters", ODD)
def test_a_call_is_read_whatever_its_schema_is(parameters):
    assert read(written({"a": "x", "z": "1"}), parameters) == {"a": "x", "z": "1"}
