"""Calls of functions: the formats of three families, forced and free, whole and streamed."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import jsonschema_rs
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import trtla
from tests.support.chat_templates import (
    CHATML,
    GRANITE_4_TOOLS,
    GRANITE_TOOLS,
    HERMES_TOOLS,
    LLAMA_3_TOOLS,
    MISTRAL_TOOLS,
    QWEN_CODER_TOOLS,
    THINKING,
    with_template,
)
from tests.support.served import SHIPPED, refused, serving
from trtla import LLM
from trtla.api import tool_grammars
from trtla.api.reasoning import ReasoningSplitter
from trtla.api.tool_calls import AnswerSplitter, CallSplitter
from trtla.api.tool_formats import GRANITE, HERMES, LLAMA_3, MISTRAL, QWEN_CODER, format_of
from trtla.api.tool_grammars import Trials
from trtla.api.tools import Function
from trtla.errors import UsageError
from trtla.llm.grammars import GrammarCompiler
from trtla.llm.text import Tokenizer
from trtla.settings.grammar import Grammar
from trtla.settings.messages import check_messages

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Oslo"]},
        "days": {"$ref": "#/$defs/days"},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
TIME = {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"],
        "additionalProperties": False}  # fmt: skip
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
TOOLS = [
    {"type": "function",
     "function": {"name": name, "description": f"It does {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]  # fmt: skip
ASKS = "'<|assistant|>\n'"
"""Where the template of Hermes begins an answer."""
KINDS = {
    "hermes": (HERMES_TOOLS, ""),
    "llama": (LLAMA_3_TOOLS, "<|python_tag|>"),
    "mistral": (MISTRAL_TOOLS, "[TOOL_CALLS]"),
    "granite": (GRANITE_TOOLS, "<|tool_call|>"),
    "coder": (QWEN_CODER_TOOLS, ""),
}


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    template, renamed = KINDS[request.param]
    folder = with_template(SHIPPED, tmp_path_factory.mktemp(request.param), template, renamed)
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        one.kind = request.param
        yield one


ASK = {"messages": HELLO, "tools": TOOLS, "max_tokens": 150, "temperature": 0.9, "seed": 3}


def check(call) -> str:
    """The name of a valid call."""
    assert call.keys() == {"id", "type", "function"}
    name = call["function"]["name"]
    jsonschema_rs.validator_for(SCHEMAS[name]).validate(json.loads(call["function"]["arguments"]))
    return name


def choice_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(served, **body):
    """The message of each choice, put together from its deltas."""
    messages, reasons = {}, {}
    for line in served.chat(**body, stream=True).text.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            message = messages.setdefault(choice["index"], {"content": "", "tool_calls": []})
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                index, function = call["index"], call["function"]
                if "id" in call:
                    assert index == len(message["tool_calls"])
                    new = {key: call[key] for key in ("id", "type")}
                    message["tool_calls"].append(new | {"function": {**function}})
                else:
                    message["tool_calls"][index]["function"]["arguments"] += function["arguments"]
            reasons[choice["index"]] = choice["finish_reason"]
    return messages, reasons


@pytest.mark.parametrize("named", [None, "get_time"])
def test_a_forced_call_is_valid_whole_and_streamed(served, named):
    choice = {"type": "function", "function": {"name": named}} if named else "required"
    ask = {**ASK, "tool_choice": choice, "n": 2, "parallel_tool_calls": False, "logprobs": True}
    answer = served.chat(**ask)
    assert answer.status_code == 200, answer.text
    whole = {one["index"]: one for one in answer.json()["choices"]}
    messages, reasons = streamed(served, **ask)
    for index, one in whole.items():
        assert one["finish_reason"] == reasons[index] == "tool_calls"
        assert one["message"]["content"] is None
        (call,) = one["message"]["tool_calls"]
        assert check(call) in ([named] if named else SCHEMAS)
        (again,) = messages[index]["tool_calls"]
        assert again["function"] == call["function"]
        assert messages[index]["content"] == ""
        assert one["logprobs"]["content"]


@pytest.mark.deep(first=1)
def test_a_call_that_is_cut_off_is_absent(served):
    choice = {"type": "function", "function": {"name": "get_time"}}
    ask = {**ASK, "tool_choice": choice}
    answer = served.chat(**ask).json()
    most = answer["usage"]["completion_tokens"] - 1
    cuts = [{"max_tokens": count} for count in range(1, most)]
    cuts += [{"stop": stop} for stop in ("time", "zone", "UTC", '"}', "{", "name", "get", ": ")]
    counts = set()
    for cut in cuts:
        one = choice_of(served.chat(**{**ask, **cut}))
        calls = one["message"].get("tool_calls", [])
        messages, reasons = streamed(served, **{**ask, **cut})
        assert (one["message"]["content"] or "") == messages[0]["content"] == ""
        assert [call["function"] for call in calls] == [
            call["function"] for call in messages[0]["tool_calls"]
        ]
        assert [check(call) for call in calls] in ([], ["get_time"])
        by_stop = "tool_calls" if calls else "stop"
        assert one["finish_reason"] == reasons[0] == ("length" if "max_tokens" in cut else by_stop)
        counts.add(len(calls))
    assert counts == {0, 1}


def test_a_free_answer_has_text_or_valid_calls(served):
    for seed in range(3):
        ask = {**ASK, "seed": seed, "max_tokens": 30}
        one = choice_of(served.chat(**ask))
        message, (messages, reasons) = one["message"], streamed(served, **ask)
        assert (message["content"] or "") == messages[0]["content"]
        assert reasons[0] == one["finish_reason"]
        assert bool(message["content"]) or message["tool_calls"]


def test_an_agent_takes_three_turns_with_two_tools(served):
    results = {"get_weather": "sunny, 20 degrees", "get_time": '{"time": "12:00"}'}
    messages = [{"role": "user", "content": "What is the weather, and what time is it?"}]
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    with openai.OpenAI(base_url=served.api, api_key="none") as client:
        for name in ("get_weather", "get_time", None):
            choice = {"type": "function", "function": {"name": name}} if name else "none"
            ask = {"messages": messages, "tools": tools, "tool_choice": choice}
            how = {"model": "tiny", "max_tokens": 120, "temperature": 0.0}
            if name == "get_weather":  # the client adds index, and parsed_arguments below
                with client.chat.completions.stream(**ask, **how) as stream:
                    done = stream.get_final_completion()
            elif name:
                done = client.chat.completions.parse(**ask, **how)
            else:
                done = client.chat.completions.create(**ask, **how)
            message = done.choices[0].message
            messages.append(message.model_dump(warnings=False))
            assert [call.function.name for call in message.tool_calls or []] == [name] * bool(name)
            for call in message.tool_calls or []:
                function = call.function.model_dump(exclude={"parsed_arguments"})
                check({"id": call.id, "type": call.type, "function": function})
                messages.append({"role": "tool", "tool_call_id": call.id, "content": results[name]})
    assert len(messages) == 6
    assert messages[-1]["content"]


def test_an_answer_has_calls_or_follows_the_schema(served):
    schema = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "days", "schema": schema}}
    for seed in range(4):
        ask = {**ASK, "seed": seed, "response_format": wanted}
        message = choice_of(served.chat(**ask))["message"]
        messages, _ = streamed(served, **ask)
        assert (message["content"] or "") == messages[0]["content"]
        if message["content"]:
            jsonschema_rs.validate(schema, json.loads(message["content"]))
        else:
            assert {check(call) for call in message["tool_calls"]} <= SCHEMAS.keys()
    forced = choice_of(served.chat(**ask, tool_choice="required"))["message"]
    assert forced["tool_calls"]
    wrong = {**ask, "response_format": {**wanted, "json_schema": {"schema": UNCLOSED}}}
    assert "the JSON schema of response_format cannot be used: unclosed group" in refused(
        served.chat(**wrong), 400, "tools"
    )


def test_calls_without_a_mark_are_told_from_answers_by_their_keys(tmp_path):
    """Llama 3's, beside a schema of objects that begin with a name as well."""

    def ask(**schema):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        return {**ASK, "temperature": 1.5, "response_format": form}

    person = {"name": {"enum": ["Ann", "get_ti"]}, "parameters": {"type": "object"}}
    clash = {"type": "object", "properties": {**person, "name": {"enum": ["get_time"]}}}
    close = {"type": "object", "properties": person, "required": [*person]}
    found = set()
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, LLAMA_3_TOOLS))) as one:
        for seed in range(6):
            how = {**ask(**close), "seed": seed, "stop": ["zzz"]}
            message = choice_of(one.chat(**how))["message"]
            messages, _ = streamed(one, **how)
            assert (message["content"] or "") == messages[0]["content"]
            if message["content"]:
                assert json.loads(message["content"])["name"] in ("Ann", "get_ti")
            else:
                assert {check(call) for call in message["tool_calls"]} <= SCHEMAS.keys()
            found.add(bool(message["content"]))
        for schema in (clash, {}, {"$ref": "#/$defs/a", "$defs": {"a": clash}}):
            assert "begin as a call of get_" in refused(one.chat(**ask(**schema)), 400, "tools")
        anything = {**ASK, "response_format": {"type": "json_object"}}
        assert "begin as a call" in refused(one.chat(**anything), 400, "tools")
    assert found == {True, False}


def as_word(folder, name):
    """Make the padding token, which has this name, a word."""
    for path in folder.glob("*token*.json"):
        said = json.loads(path.read_text())
        said.pop("pad_token", None)
        for token in said.get("added_tokens", ()):
            token["special"] &= token["content"] != name
        path.write_text(json.dumps(said))
    assert Tokenizer(folder).token_id(name) not in Tokenizer(folder).control_ids


@pytest.mark.parametrize("special", [True, False])
def test_a_mark_may_be_a_token(tmp_path, special):
    folder = with_template(SHIPPED, tmp_path, HERMES_TOOLS, "<tool_call>")
    if not special:
        as_word(folder, "<tool_call>")
    with serving(partial(LLM, folder)) as one:
        choice = choice_of(one.chat(**ASK, tool_choice="required", logprobs=True))
        messages, _ = streamed(one, **ASK, tool_choice="required")
    assert choice["logprobs"]["content"][0]["token"] == "<tool_call>"
    assert {check(call) for call in choice["message"]["tool_calls"]} <= SCHEMAS.keys()
    assert len(messages[0]["tool_calls"]) == len(choice["message"]["tool_calls"])


@pytest.mark.parametrize("ends", ["<think>\\n</think>\\n\\n", "<think>\\n", ""])
def test_a_forced_call_and_a_grammar_come_behind_the_thoughts(tmp_path, ends):
    template = f"{HERMES_TOOLS.replace(ASKS, ASKS[:-1] + ends + ASKS[-1])}{{# </think> #}}"
    folder = with_template(SHIPPED, tmp_path, template, "</think>")
    as_word(folder, "</think>")
    likely = {str(Tokenizer(folder).token_id("</think>")): 100.0}
    with serving(partial(LLM, folder)) as one:
        choice = choice_of(one.chat(**ASK, tool_choice="required", logit_bias=likely))
        for grammar in ({"regex": "[ab/]{3}"}, {"choice": ["aab", "b/"]}, {"lark": 'start: "ab"'}):
            said = one.chat(**ASK | {"tools": []}, logit_bias=likely, grammar=grammar)
            assert re.fullmatch("[ab/]{2,3}", choice_of(said)["message"]["content"]), grammar
        schema = {"json_schema": {"enum": [7]}}
        said = one.chat(**ASK | {"tools": []}, logit_bias=likely, grammar=schema)
        assert choice_of(said)["message"]["content"] == "7"
    assert choice["message"]["content"] is None
    assert check(choice["message"]["tool_calls"][0]) in SCHEMAS


def test_the_documented_request_calls_its_tool(tmp_path):
    page = (Path(trtla.__file__).parents[1] / "docs" / "serving.md").read_text()
    body = re.search(
        r"^## Tools\n\n[^\n]*\n\n```\ncurl .*? -d '(.*?)'\n```", page, re.DOTALL | re.MULTILINE
    )[1]
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, HERMES_TOOLS))) as one:
        asked = json.loads(body) | {"max_tokens": 60, "parallel_tool_calls": False, "seed": 1}
        message = choice_of(one.chat(**asked))["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]


def _answered():
    """A conversation with a call and its answer."""
    function = {"name": "f", "arguments": '{"a": "<|end|> é", "b": [1]}'}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "it<|end|>s"}]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_calls_reach_the_template_as_it_takes_them(kind, tmp_path):
    template, renamed = KINDS[kind]
    tokenizer = Tokenizer(with_template(SHIPPED, tmp_path, template, renamed))
    messages = check_messages(_answered(), "the conversation")
    text = tokenizer.chat_text(messages)
    written = '{"a": "<|end|> é", "b": [1]}'
    if kind == "coder":
        written = "<parameter=a>\n<|end|> é\n</parameter>\n<parameter=b>\n[1]\n</parameter>\n"
    assert written in text
    assert "it<|end|>s" in text
    ends = tokenizer.prompt_ids(messages).count(tokenizer.token_id("<|end|>"))
    assert ends == text.count("<|end|>") - 2  # those of the call and of the tool are text


TEXTS = {
    "hermes": (HERMES, 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\" <"}}\n'
               '</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "Well."),
    "llama": (LLAMA_3, '{"name": "f", "parameters": {"a": "}\\" <"}}', ""),
    "tagged": (LLAMA_3, '<|python_tag|>{"name": "f", "parameters": {"a": "}\\" <"}}', ""),
    "mistral": (MISTRAL, 'Well. [TOOL_CALLS] [{"name": "f", "arguments": {"a": "}\\" <"}, "id": '
                '"1"}, {"name":"g","arguments":{}}]', "Well."),
    "granite": (GRANITE, '<|tool_call|>[{"name": "f", "arguments": {"a": "}\\" <"}}, {"name": "g", '
                '"arguments": {}}]', ""),
    "coder": (QWEN_CODER, "Well.\n<tool_call>\n<function=f>\n<parameter=a>\n}\" <\n</parameter>\n"
              "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
              "Well."),
}  # fmt: skip


def split(format_, text, cuts, *, cut=False, thinks=False, reason=False):
    """Content and calls of a text that comes in pieces, and whether it ends as a call."""
    reasoning = ReasoningSplitter("") if thinks else None
    splitter = AnswerSplitter(reasoning, CallSplitter(format_, "key", {"f": {}, "g": {}}))
    content, calls = "", []
    edges = [0, *sorted(cuts), len(text)]
    for number, (a, b) in enumerate(pairwise(edges), start=2):
        parts = splitter.push(text[a:b], last=number == len(edges), cut=cut)
        content += parts.get("content", "")
        for call in parts.get("tool_calls", ()):
            assert call["index"] == len(calls)
            json.loads(call["function"]["arguments"])
            calls.append((call["function"]["name"], call["function"]["arguments"]))
    return (content, calls, splitter.calls) if reason else (content, calls)


@pytest.mark.parametrize("kind", TEXTS)
def test_calls_come_off_a_text(kind):
    format_, text, content = TEXTS[kind]
    calls = [("f", '{"a": "}\\" <"}')] + [("g", "{}")] * (kind not in ("llama", "tagged"))
    assert split(format_, text, ()) == split(format_, text, range(len(text))) == (content, calls)


@example("llama", ['{"name": "f", '], {0, 1})
@given(
    st.sampled_from(list(TEXTS)),
    st.lists(st.sampled_from(
        ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[", "]", ",", '{"name": "f", ', "}", " ",
         '"arguments": {', '"parameters": {', '"', "\\", "a", "\n", "<|python_tag|>",
         "<|tool_call|>", "<function=f>", "<parameter=a>", "</parameter>", "</function>"]),
        max_size=12),
    st.sets(st.integers(0, 200)),
)  # fmt: skip
def test_the_pieces_of_a_text_make_no_difference(kind, parts, cuts):
    format_, text = TEXTS[kind][0], "".join(parts)
    assert split(format_, text, {cut for cut in cuts if cut <= len(text)}) == split(
        format_, text, ()
    )


CUT = {
    **TEXTS,
    "thinking": (HERMES, f"<think>f?</think>\n\n{TEXTS['hermes'][1]}", "Well."),
    "bare": (HERMES, TEXTS["hermes"][1][len("Well.\n"):], ""),
    "thinking coder": (QWEN_CODER, f"<think>f?</think>\n\n{TEXTS['coder'][1]}", "Well."),
}  # fmt: skip


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("kind", CUT)
def test_an_end_within_a_call_shows_nothing_of_it(kind, cut):
    format_, text, content = CUT[kind]
    thinks = kind.startswith("thinking")
    whole = split(format_, text, (), thinks=thinks)[1]
    tokenizer = Tokenizer(SHIPPED)
    tokens = [len(tokenizer.decode(tokenizer.encode(text)[:n])) for n in range(1, 200)]
    for end in range(len(text) + 1):
        how = {"cut": cut, "thinks": thinks}
        shown, calls, called = split(format_, text[:end], (), **how, reason=True)
        edges = [edge for edge in tokens if edge < end]
        assert split(format_, text[:end], edges, **how, reason=True) == (shown, calls, called)
        assert calls == whole[: len(calls)]
        sign = "" if cut else format_.mark[0]  # an answer that ends itself may end with it
        assert content.startswith(shown.strip()) or shown.strip() in (
            sign,
            f"{content}\n{sign}",
            f"{content} {sign}",
        )
        assert not called or calls
        for mark in ("tool", "TOOL", "python", "name", "think", "function", "parameter"):
            assert mark not in shown, text[:end]
    assert called
    assert calls == whole


def test_what_only_begins_as_a_call_is_text():
    assert split(HERMES, "a <tool_call> b", ()) == ("a <tool_call> b", [])
    for text in ('{"x": 1}', '{"name": "Ann", "parameters": {"a": 1}}'):
        assert split(LLAMA_3, text, range(len(text))) == (text, [])


def test_a_mark_in_a_text_of_json_holds_nothing_back():
    splitter = AnswerSplitter(None, CallSplitter(HERMES, "key", {"f": {}}))
    parts = ['{"a": "<tool_call>', " {", '", "b": ', '"<tool_call>"', "}"]
    shown = [splitter.push(part, last=part == "}").get("content") for part in parts]
    assert shown == ['{"a": "', None, '<tool_call> {", "b":', ' "<tool_call>"', "}"]


def test_the_beginning_of_a_mark_behind_a_call_is_no_text():
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    second = '\n<tool_call>\n{"na'
    for end in range(len(call) - len("\n</tool_call>"), len(call)):
        assert split(HERMES, call[:end], ()) == ("", [("f", "{}")]), call[:end]
    for end in range(len(second)):
        assert split(HERMES, call + second[:end], ()) == ("", [("f", "{}")]), second[:end]
    assert split(HERMES, call + "\nDone <", ()) == ("Done <", [("f", "{}")])


def test_thoughts_come_off_in_front_of_calls():
    splitter = AnswerSplitter(ReasoningSplitter(""), CallSplitter(HERMES, "key", {"f": {}}))
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = f"<think>f or <tool_call>?</think>\n\n{call}"
    parts = [splitter.push(sign, last=at == len(text) - 1) for at, sign in enumerate(text)]
    assert "".join(part.get("reasoning_content", "") for part in parts) == "f or <tool_call>?"
    assert not any(part.get("content") for part in parts)
    assert splitter.calls


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    folder = with_template(SHIPPED, tmp_path_factory.mktemp("rules"), CHATML, "[TOOL_CALLS]")
    return GrammarCompiler(Tokenizer(folder), 2048, [0])


CALL = '{"name": "get_time", "arguments": {"zone": "UTC"}}'
LLAMA_CALL = CALL.replace("arguments", "parameters")
WRAPPED = f"<tool_call>\n{CALL}\n</tool_call>"
ZONE_TAG = "<parameter=zone>\nUTC\n</parameter>"
TAGGED = f"<tool_call>\n<function=get_time>\n{ZONE_TAG}\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("format_", "state", "must", "allowed", "forbidden"),
    [
        (HERMES, "answering", False, ["", "a < b", f"a {WRAPPED}", f"{WRAPPED}\n{WRAPPED}"],
         ["<tool_call> ", f"{WRAPPED} a", '<tool_call>\n{"name": "no']),
        (HERMES, "answering", True, [WRAPPED, f"{WRAPPED}\n{WRAPPED}"], ["a", "\n"]),
        (HERMES, "undecided", True, [f"<think>a</think>\n\n{WRAPPED}", WRAPPED], ["a"]),
        (HERMES, "undecided", False,
         [f"<think><tool_call> a</think>\n\nb{WRAPPED}", "<think>a</think> b", "b"],
         [f"{WRAPPED} a"]),
        (HERMES, "thinking", False, [f"a <tool_call></think>\n\n{WRAPPED}", "a</think> b"], []),
        (HERMES, "thinking", True, [f"a</think>\n\n{WRAPPED}"], ["a</think>\n\nb"]),
        (MISTRAL, "answering", False, ["", "a [", f"[TOOL_CALLS][{CALL}, {CALL}]"],
         ["[TOOL_CALLS]a", f"[TOOL_CALLS][{CALL}]a"]),
        (MISTRAL, "answering", True, [f"[TOOL_CALLS][{CALL}]"], ["a", "[TOOL_CALLS][]"]),
        (GRANITE, "answering", True, [f"<|tool_call|>[{CALL}, {CALL}]"], ["a", "[", "<tool_call>"]),
        (QWEN_CODER, "answering", False, ["", "a < b", f"a\n{TAGGED}", f"{TAGGED}\n{TAGGED}"],
         ["<tool_call> ", f"{TAGGED} a", WRAPPED, "<tool_call>\n<function=no"]),
        (QWEN_CODER, "answering", True, [TAGGED], ["a", "\n", TAGGED.replace("UTC", "CET"),
         "<tool_call>\n<function=get_time>\n</function>"]),
        (QWEN_CODER, "thinking", True, [f"<function=get_time></think>\n\n{TAGGED}"], []),
        (LLAMA_3, "answering", False, ["", "a {", LLAMA_CALL],
         ["{a", f"{LLAMA_CALL};", '<|python_tag|>{"name": "no', "<|python_tag|>a"]),
        (LLAMA_3, "answering", True, [LLAMA_CALL, f"<|python_tag|>{LLAMA_CALL}"], ["a"]),
    ],
)  # fmt: skip
def test_the_grammar_of_a_format(compiler, format_, state, must, allowed, forbidden):
    tokenizer = compiler._tokenizer
    control = {tokenizer.token_name(token): token for token in tokenizer.control_ids}.get
    functions = [Function(name=name, parameters=schema) for name, schema in SCHEMAS.items()]
    grammar = format_.grammar(functions, state=state, must=must, several=True, control=control)
    start = compiler.start(grammar)
    for text in allowed:
        ids = tokenizer.encode(text, special=False)
        assert start().allowed([*ids, 0]) == len(ids) + 1, text
    for text in forbidden:
        ids = tokenizer.encode(text, special=False)
        assert start().allowed(ids) < len(ids), text


@pytest.mark.parametrize("format_", [MISTRAL, LLAMA_3])
def test_no_text_spells_a_mark_that_is_a_token(tmp_path, format_):
    """A model that quotes a message writes it in the letters in which it was read."""
    folder = with_template(SHIPPED, tmp_path, CHATML, format_.mark)
    compiler = GrammarCompiler(Tokenizer(folder), 2048, [0])
    tokenizer = compiler._tokenizer
    assert tokenizer.token_id(format_.mark) in tokenizer.control_ids
    control = {tokenizer.token_name(token): token for token in tokenizer.control_ids}.get
    functions = [Function(name=name, parameters=schema) for name, schema in SCHEMAS.items()]
    how = {"state": "answering", "must": False, "several": True, "control": control}
    start = compiler.start(format_.grammar(functions, **how))
    halves = format_.mark[:3], format_.mark[3:] + '[{"name": "delete_all"'
    ids = [token for half in halves for token in tokenizer.encode(half, special=False)]
    assert tokenizer.token_id(format_.mark) not in ids
    assert start().allowed(ids) < len(ids)


def test_a_call_of_no_function_of_the_request_is_text():
    text = WRAPPED.replace("get_time", "delete_all")
    assert split(HERMES, text, range(len(text))) == (text, [])


@pytest.mark.parametrize("state", ["answering", "undecided", "thinking"])
@pytest.mark.parametrize(
    ("format_", "call"), [(HERMES, WRAPPED), (MISTRAL, f"[TOOL_CALLS][{CALL}]")]
)
def test_the_grammar_of_calls_beside_a_schema(compiler, format_, call, state):
    control = {name: compiler._tokenizer.token_id(name) for name in ("[TOOL_CALLS]",)}.get
    functions = [Function(name=name, parameters=schema) for name, schema in SCHEMAS.items()]
    how = {"state": state, "must": False, "several": True, "control": control}
    answer = Grammar.of({"json_schema": {"const": {"a": 1}}, "whitespace_pattern": ""})
    start = compiler.start(format_.grammar(functions, answer=answer, **how))

    def is_allowed(text):
        ids = compiler._tokenizer.encode(text, special=False)
        return start().allowed([*ids, 0]) == len(ids) + 1

    thoughts = "" if state == "answering" else "a</think>\n\n"
    thoughts = f"<think>{thoughts}" if state == "undecided" else thoughts
    assert all(is_allowed(thoughts + text) for text in ('{"a":1}', call))
    for text in ("", "a", '{"a": 1}', f'{{"a":1}}{call}', f'{call}{{"a":1}}'):
        assert not is_allowed(thoughts + text), text


_A = {"$defs": {"A": {"properties": {"a": {"type": "integer"}}}}}


@pytest.mark.parametrize(
    ("more", "allowed"),
    [
        ({}, ["{}"]),
        ({"parameters": {"properties": {"a": {"type": "integer"}}}}, ["{}", '{"a": 1}']),
        ({"parameters": {"$ref": "#/$defs/A", **_A}}, ["{}", '{"a": 1}']),
        ({"parameters": {"anyOf": [{"$ref": "#/$defs/A"}], **_A}}, ["{}", '{"a": 1}']),
        ({"parameters": {"additionalProperties": True}}, ["{}", '{"a": 1}', '{"b": 1}']),
    ],
)
def test_arguments_have_the_keys_of_the_schema_alone(compiler, more, allowed):
    grammar = HERMES.grammar(
        [Function(name="f", **more)],
        state="answering",
        must=True,
        several=False,
        control=lambda name: None,
    )
    start = compiler.start(grammar)

    def is_allowed(arguments):
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        ids = compiler._tokenizer.encode(text, special=False)
        return start().allowed(ids) == len(ids)

    assert [one for one in ("{}", '{"a": 1}', '{"b": 1}') if is_allowed(one)] == allowed


def test_formats_are_found_by_their_templates():
    templates = (HERMES_TOOLS, LLAMA_3_TOOLS, MISTRAL_TOOLS, GRANITE_TOOLS, CHATML)
    found = [format_of(one) for one in templates]
    assert found == [HERMES, LLAMA_3, MISTRAL, GRANITE, None]
    assert [format_of(one) for one in (GRANITE_4_TOOLS, QWEN_CODER_TOOLS)] == [HERMES, QWEN_CODER]
    assert format_of("tools <tool_call>\n<function=") is None
    assert format_of("tools [TOOL_CALLS]name[ARGS]{}") is None
    assert format_of("tools <|tool_call|>{}<|/tool_call|>") is None


def tool(**more):
    return {"type": "function", "function": {"name": "f", **more}}


def keyed(**schema):
    """Parameters with one key, of this schema."""
    return {"parameters": {"type": "object", "properties": {"a": schema, "n": {"type": "null"}},
                           "required": ["a", "n"], "additionalProperties": False}}  # fmt: skip


ODD = {
    "look-ahead": keyed(type="string", pattern="^(?!-)[a-z]{1,9}$"),
    "look-behind": keyed(type="string", pattern="a(?<=a)"),
    "back reference": keyed(type="string", pattern=r"^(a|b)\1$"),
    "pattern of keys": keyed(type="object", patternProperties={"(?=a)": {}}),
    "remote": keyed(**{"$ref": "https://example.com/schema.json"}),
    "missing": keyed(**{"$ref": "#/$defs/no"}),
    "a type": keyed(type="b"),
    "types": keyed(type=["b", "null"]),
    "types that are none": keyed(type=[{}, ["null"]]),
    "unique": keyed(type="array", items={"enum": [1]}, uniqueItems=True),
    "a format": keyed(type="string", format="regex"),
    "alternatives": keyed(oneOf=[{"type": "string"}, {"type": "string", "minLength": 3}]),
    "negation": keyed(**{"not": {"type": "string"}}),
    "nothing": keyed(type="integer", minimum=3, maximum=1),
    "an array": {"parameters": {"type": "array"}},
    "no schema": {"parameters": {"properties": {"a": 7}}},
    "long": {"parameters": {"properties": {"a" * 70_000: {}}}},
    "slow": keyed(type="number", multipleOf=1e-9, minimum=0, maximum=1e9),
    "deep": {"parameters": json.loads('{"items":' * 80 + "{}" + "}" * 80)},
}
"""Functions with parameters that are hard or impossible to keep a text to."""


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "long"])
def test_one_odd_tool_closes_nothing(served, kind):
    tools = [tool(name="f", **ODD[kind]), *TOOLS]
    how = {"messages": HELLO, "temperature": 0, "max_tokens": 3}
    assert choice_of(served.chat(**how, tools=tools))
    named = {"type": "function", "function": {"name": "get_time"}}
    asked = {**how, "max_tokens": 150, "tools": tools, "tool_choice": named}
    assert [check(call) for call in choice_of(served.chat(**asked))["message"]["tool_calls"]]
    strict = [{**tools[0], "function": {**tools[0]["function"], "strict": True}}, *TOOLS]
    if served.chat(**how, tools=strict).status_code == 400:
        assert "the function f" in refused(served.chat(**how, tools=strict), 400, "tools")


def test_what_a_grammar_keeps_of_an_odd_tool():
    trials = Trials()
    loose = trials.sure(Function(name="f", **ODD["look-ahead"])).parameters["properties"]
    assert loose == {"a": {"type": "string"}, "n": {"type": "null"}}
    assert trials.sure(Function(name="g", parameters=WEATHER)).parameters == WEATHER
    assert trials.loosened(Function(name="f", **ODD["an array"])).parameters["type"] == "object"


def test_a_request_has_a_limited_number_of_trials(monkeypatch):
    """Others with grammars wait for it meanwhile."""
    tried = []
    can_keep = tool_grammars.can_keep
    monkeypatch.setattr(
        tool_grammars, "can_keep", lambda one: tried.append(one.text) or can_keep(one)
    )
    patterns = [f"(?=a){i}" * 1000 for i in range(9)] + [f"(?=a){i}" for i in range(500)]
    keys = {f"a{i}": {"type": "string", "pattern": one} for i, one in enumerate(patterns)}
    odd = Function(name="f", parameters={"type": "object", "properties": keys})
    trials = Trials()
    loose = trials.loosened(odd).parameters["properties"]
    assert list(loose.values()) == [{"type": "string"}] * len(patterns)
    assert trials.sure(odd).parameters == {"type": "object", "additionalProperties": True}
    assert len([text for text in tried if len(text) > 2000]) < 9
    assert len(tried) < 400


def test_the_most_tools_with_long_definitions_are_answered(tmp_path):
    """A template that writes their names alone, so that the prompt fits the small model."""
    template = HERMES_TOOLS.replace("(tool | tojson)", "tool.function.name[-3:]")
    tools = [tool(name=f"f{i}", description="word " * 50, **_many_keys(i)) for i in range(128)]
    assert len(json.dumps(tools)) > 400_000
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, template))) as one:
        ask = {"messages": HELLO, "tools": tools, "temperature": 0}
        assert choice_of(one.chat(**ask, max_tokens=3))
        odd = [*tools[1:], tool(name="long", **ODD["long"])]
        assert choice_of(one.chat(**ask | {"tools": odd}, max_tokens=3))
        call = choice_of(one.chat(**ask, max_tokens=400, tool_choice="required"))
        assert call["finish_reason"] == "length" or call["message"]["tool_calls"]


def _many_keys(number):
    keys = {f"p{number}_{i}": {"type": "string", "title": "a", "description": "word " * 22}
            for i in range(20)}  # fmt: skip
    return {"parameters": {"type": "object", "properties": keys, "required": []}}


UNCLOSED = {"properties": {"a": {"type": "string", "pattern": "("}}}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "other kinds of tools"),
        ({"tools": [tool(name="a b")]}, "tools.0.function.name", "letters, digits"),
        ({"tools": [tool(), tool()]}, "tools", "two functions named f"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools.0", "the form of responses"),
        ({"tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]},
         "tools.0.function", "'paramters' of a function is not supported; use parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "input_schema": {}}}]},
         "tools.0.function", "use parameters"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice", "none, auto, required"),
        ({"tool_choice": "required"}, "tool_choice", "there are none"),
        ({"functions": [tool()["function"]]}, "functions", "not supported; use tools"),
        ({"function_call": "auto"}, "function_call", "not supported; use tool_choice"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "has no switch for it"),
        ({"tools": [tool()], "tool_choice": tool(name="g")}, "tool_choice", "names g"),
        ({"tools": [tool()], "guided_regex": "a"}, "tools", "exclude"),
        ({"tools": [tool(description="<|end|>")]}, "tools", "hold <|end|>"),
        ({"tools": [tool(name="g"), tool(**ODD["an array"], strict=True)]}, "tools",
         "the parameters of the function f are of type 'array'; use object"),
        ({"tools": [tool(name="g", **ODD["look-ahead"]), tool(**ODD["a type"], strict=True)]},
         "tools", "the parameters of the function f cannot be used: Invalid type: b"),
        ({"tools": [tool(name="g"), tool(parameters=UNCLOSED)], "tool_choice": "required"},
         "tools", "the parameters of the function f cannot be used: unclosed group"),
        ({"tools": [tool(name="g"), tool(**ODD["long"], strict=True)]}, "tools",
         "the parameters of the function f have"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "tool_call_id", "which call"),
        ({"messages": [*HELLO, {"role": "tool", "content": "a", "tool_call_id": "b"}]}, "messages",
         "answer to the call b, which no message"),
        ({"messages": [{**HELLO[0], "tool_calls": [{"id": "a", **tool(arguments="{}")}]}]},
         "tool_calls", "of an assistant"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(served, body, param, said):
    assert said in refused(served.chat(**{"messages": HELLO, "max_tokens": 4, **body}), 400, param)


def test_no_tools_and_none_ask_for_nothing(served):
    plain = {"messages": HELLO, "max_tokens": 6, "temperature": 0}
    text = choice_of(served.chat(**plain))
    for more in ({"tools": []}, {"tools": TOOLS, "tool_choice": "none"}, {"tool_choice": "none"}):
        assert choice_of(served.chat(**plain, **more)) == text


@pytest.mark.parametrize("template", [CHATML, f"{THINKING}{{# <tool_call> #}}"])
def test_a_template_without_tools_refuses_them(tmp_path, template):
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, template))) as one:
        answer = one.chat(messages=HELLO, tools=TOOLS, max_tokens=2)
    assert "has no calls of tools" in refused(answer, 400, "tools")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "assistant", "tool_calls": "f"}, "no list"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "has the function"),
        ({"role": "tool", "content": "a", "tool_call_id": "[a]"}, "call id"),
        ({"role": "user", "content": "a", "tool_calls": []}, "unknown key"),
    ],
)
def test_calls_in_messages_are_checked(message, said):
    with pytest.raises(UsageError, match=said):
        check_messages([message], "the conversation")
