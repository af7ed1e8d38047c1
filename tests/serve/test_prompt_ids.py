"""Prompts of requests with tools have the ids that transformers makes of the same request."""

from __future__ import annotations

import json
from functools import cache

import jinja2
import pytest
from hypothesis import HealthCheck, given, reject
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.support.chat_templates import (
    CHATML,
    GRANITE_4_TOOLS,
    GRANITE_TOOLS,
    HARMONY,
    HERMES_TOOLS,
    LLAMA_3_TOOLS,
    MISTRAL_TOOLS,
    QWEN_CODER_TOOLS,
    THINKING,
    with_template,
)
from tests.support.examples import examples
from tests.support.served import SHIPPED
from trtla.api.generation import _conversation
from trtla.api.protocol import ChatBody
from trtla.api.reading import read_body
from trtla.errors import UsageError
from trtla.llm.text import Tokenizer
from trtla.settings.messages import check_messages

WHOLE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson(indent=2) }}{% endfor %}"
    "{% for message in messages %}{{ '\n' + message.role + ': ' }}{% if message.content is string "
    "%}{{ message.content }}{% elif message.content is defined %}{% for part in message.content %}"
    "{{ '[' + part.text + ']' }}{% endfor %}{% else %}{{ '(silent)' }}{% endif %}"
    "{{ message.reasoning_content }}{{ message.thinking }}{{ message.tool_call_id }}"
    "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nassistant:' }}{% endif %}"
)
"""A template that shows all that there is."""
QWEN_3_TOOLS = (
    "{% if tools %}{{ '<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\n</tools> <tool_call>\n' }}{% endif %}{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "{% if m.content is string %}{{ m.content }}{% endif %}{% if m.reasoning_content is string %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    '{{ \'<tool_call>\n{"name": "\' + f.name + \'", "arguments": \' }}{% if f.arguments is string '
    "%}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}"
    "{% endfor %}{{ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    "{% endif %}"
)
"""As of Qwen3: arguments may be a text."""
DEEPSEEK_TOOLS = (
    "{% for tool in tools or [] %}{{ '### ' + tool.function.name + '\n' + (tool.function.parameters"
    " | tojson) }}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' and m.content is "
    "not defined or m.content is none %}{% for call in m.tool_calls or [] %}{{ '<call>' + "
    "call.type ~ call.function.name + '\n```json\n' + call.function.arguments + '\n```</call>' }}"
    "{% endfor %}{% else %}{{ '<|' + m.role + '|>' + m.content }}{% endif %}{% endfor %}"
)
"""As of DeepSeek's: calls are shown where there is no content, which is not an empty one."""
PYTHON_TOOLS = (
    "{% if tools %}{{ 'List of tools: ' + (tools | tojson) }}{% endif %}{% for m in messages %}"
    "{{ '<|' + m.role + '|>' + (m.content or '') }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + '(' }}{% for key, value in call.function.arguments.items() %}"
    "{{ key ~ \"='\" ~ value ~ \"', \" }}{% endfor %}{{ ')' }}{% endfor %}{% endfor %}"
)
"""As of LFM2: calls are written as Python's."""
KINDS = {
    "all": WHOLE,
    "chatml": CHATML,
    "deepseek": DEEPSEEK_TOOLS,
    "coder": QWEN_CODER_TOOLS,
    "granite": GRANITE_TOOLS,
    "granite_4": GRANITE_4_TOOLS,
    "harmony": HARMONY,
    "hermes": HERMES_TOOLS,
    "llama": LLAMA_3_TOOLS,
    "mistral": MISTRAL_TOOLS,
    "python": PYTHON_TOOLS,
    "qwen": QWEN_3_TOOLS,
    "thinking": THINKING,
    "two": [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": WHOLE}],
}
WORDS = st.text("ab {}\"'\\<é\n", max_size=8).map(lambda text: f"w{text}w")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=5,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=3)


def shuffled(required, optional=None):
    """Objects with these keys in any order."""
    items = st.fixed_dictionaries(required, optional=optional or {})
    return items.flatmap(lambda one: st.permutations(list(one.items())).map(dict))


FUNCTION = shuffled(
    {"name": st.sampled_from(["f", "g.h", "get_a-b"])},
    {
        "description": WORDS | st.none(),
        "parameters": OBJECTS | st.none(),
        "strict": st.booleans() | st.none(),
        "return": JSON,
        "x-own": JSON,
    },
)
TOOLS = st.lists(
    shuffled({"type": st.just("function"), "function": FUNCTION}, {"x-own": JSON}),
    max_size=3,
    unique_by=lambda tool: tool["function"]["name"],
)


@st.composite
def calls(draw):
    """Calls as clients write them: arguments are JSON with any blanks."""
    made = []
    for number in range(draw(st.integers(1, 2))):
        how = draw(st.sampled_from([None, (",", ":"), (" , ", " : ")]))
        text = json.dumps(draw(OBJECTS), separators=how, ensure_ascii=draw(st.booleans()))
        function = draw(shuffled({"name": st.just("f"), "arguments": st.just(text)}))
        call = {"id": st.just(f"call{number:05}"), "function": st.just(function)}
        made.append(draw(shuffled(call, {"type": st.just("function")})))
    return made


@st.composite
def conversations(draw):
    """Turns of a user, an assistant with calls or none, and tools, with keys in any order."""
    messages = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        messages.append({"role": "user", "content": draw(WORDS)})
        thoughts = st.sampled_from(["reasoning", "reasoning_content"]).flatmap(
            lambda name: WORDS.map(lambda text: {name: text})
        )
        more = draw(st.just({}) | thoughts)
        if draw(st.booleans()):
            called = draw(calls())
            silent = draw(st.sampled_from([{}, {"content": None}, {"content": draw(WORDS)}]))
            messages.append({"role": "assistant", **silent, "tool_calls": called, **more})
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)}
                for call in called
            ]
            messages.append({"role": "assistant", "content": draw(WORDS)})
        else:
            messages.append({"role": "assistant", "content": draw(WORDS), **more})
    parts = st.lists(WORDS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=2)
    messages.append({"role": "user", "content": draw(WORDS | parts)})
    return messages


@cache
def both(kind, folders):
    """Our tokenizer and that of transformers, of one folder."""
    folder = with_template(SHIPPED, folders / kind, KINDS[kind])
    return Tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def found_ids(tokenizer, messages, tools):
    """The ids that a request has for its prompt."""
    body = read_body(ChatBody, json.dumps({"messages": messages, "tools": tools}).encode())
    checked = check_messages(_conversation(body), "the conversation")
    return list(tokenizer.prompt_ids(checked, rendering=body.rendering))


def taken(messages, form, takes_parts):
    """The messages with arguments and contents in forms that the template takes."""
    changed = json.loads(json.dumps(messages))
    for message in changed:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = form(call["function"]["arguments"])
        if isinstance(message.get("content"), list) and not takes_parts:
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return changed


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("templates")


@pytest.mark.parametrize("kind", KINDS)
@examples(
    200,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],  # under load
)
@given(conversations(), TOOLS)
def test_the_prompt_has_the_ids_of_transformers(kind, folders, messages, tools):
    ours, theirs = both(kind, folders)
    tools = [] if kind in ("chatml", "thinking") else tools
    takes_text = kind in ("deepseek", "granite_4", "mistral", "qwen")
    form = (lambda text: text) if takes_text else json.loads
    given = taken(messages, form, kind == "all" or (kind == "two" and tools))
    try:
        text = theirs.apply_chat_template(
            given, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
        found = found_ids(ours, messages, tools)
    except (jinja2.TemplateError, TypeError, UsageError):
        reject()  # the template takes no such messages, or leaves one out
    assert found == theirs(text, add_special_tokens=False)["input_ids"], text


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning": "why"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "why", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "w"}, {"text": "hy"}]},
        {"reasoning": "why", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
    ],
)
def test_thoughts_are_taken_under_the_names_of_other_servers(folders, thoughts):
    def ids(more):
        answer = {"role": "assistant", "content": "a", **more}
        hello = {"role": "user", "content": "b"}
        return found_ids(both("thinking", folders)[0], [hello, answer, hello], [])

    assert ids(thoughts) == ids({"reasoning_content": "why"}) != ids({})


def test_nulls_of_unknown_keys_are_no_keys():
    """Clients' libraries write out all fields that they know."""
    function = {"name": "f", "arguments": "{}", "provider": None}
    call = {"id": "a", "type": None, "function": function, "custom": None}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "annotations": None}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "copy": None},
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ]
    body = read_body(ChatBody, json.dumps({"messages": messages}).encode())
    asked, called, answered = check_messages(_conversation(body), "the conversation")
    assert asked["content"] == [{"type": "text", "text": "a"}]
    assert called == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert answered["tool_call_id"] == "a"
