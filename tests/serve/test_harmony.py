"""Harmony, the messages of gpt-oss: thoughts, texts and calls, whole and streamed, cut anywhere."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import pairwise

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chat_templates import harmony_folder
from tests.support.response_items import items
from tests.support.served import SHIPPED, serving
from trtla import LLM
from trtla.api.harmony import SIGNS, HarmonySplitter, speaks_harmony
from trtla.api.harmony_grammars import HARMONY
from trtla.api.tools import Function
from trtla.llm.grammars import GrammarCompiler
from trtla.llm.text import Tokenizer
from trtla.runtime.request import TokenLogProb
from trtla.settings.messages import Rendering

HELLO = [{"role": "user", "content": "hello"}]
ZONE = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": ZONE}}]
THOUGHT = "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Yes."
TO = "to=functions.get_time"
CALLED = '{"zone": "UTC"}'
CALLS = [
    f"<|channel|>commentary {TO} <|constrain|>json<|message|>{CALLED}",
    f"<|channel|>commentary {TO}<|message|>{CALLED}",
    f"<|channel|>analysis {TO} json<|message|>{CALLED}",
    f" {TO}<|channel|>commentary json<|message|>{CALLED}",
    f" {TO}<|channel|>commentary <|constrain|>json<|message|>{CALLED}",
]


def signed(text):
    for name, sign in SIGNS.items():
        text = text.replace(name, sign)
    return text


def split(text, cuts=(), prompt="", begun=""):
    """The thoughts, the content and the calls of a text that comes in pieces."""
    splitter = HarmonySplitter(prompt, begun, "key", {"get_time": ZONE})
    edges, parts = [0, *sorted(cuts), len(text)], {}
    for a, b in pairwise(edges):
        for name, part in splitter.push(text[a:b], last=b == len(text)).items():
            parts[name] = parts[name] + part if name in parts else part
    calls = [one["function"]["arguments"] for one in parts.get("tool_calls", ())]
    assert splitter.calls == bool(calls)
    return parts.get("reasoning_content", ""), parts.get("content", ""), calls


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (THOUGHT + FINAL, ("Well.", "Yes.", [])),
        (f"{THOUGHT}{FINAL}<|return|>", ("Well.", "Yes.", [])),
        (THOUGHT + PREAMBLE + THOUGHT + FINAL, ("Well.\n\nWell.", "I look.\n\nYes.", [])),
        *((THOUGHT + call, ("Well.", "", [CALLED])) for call in CALLS),
        *((f"{call}<|call|>", ("", "", [CALLED])) for call in CALLS),
        (CALLS[0].replace("get_time", "no"), ("", CALLED, [])),
        (CALLS[0].replace(CALLED, "{UTC}"), ("", "", [])),
        (CALLS[0][:-1], ("", "", [])),
        (FINAL + THOUGHT, ("Well.", "Yes.", [])),
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", ("a", "b", [])),
        ("<|channel|>anal", ("", "", [])),
        (" to=fun", ("", "", [])),
        (" to tell", ("", " to tell", [])),
        ("Yes.", ("", "Yes.", [])),
        ("", ("", "", [])),
    ],
)
def test_an_answer_is_split_by_its_channels(text, parts):
    text = signed(text)
    assert split(text) == split(text, range(len(text))) == parts


def test_an_answer_may_begin_within_a_message():
    asked = "<|start|>user<|message|><|start|>assistant<|channel|>final<|message|><|end|>"
    assert split(signed(THOUGHT), prompt=f"{asked}<|start|>assistant") == ("Well.", "", [])
    opened = f"{asked}<|start|>assistant<|channel|>analysis<|message|>"
    assert split("Well.", prompt=opened) == ("Well.", "", [])
    assert split("Well.", prompt=opened, begun="No. ") == ("", "Well.", [])
    states = [HarmonySplitter(*how).state for how in ((asked,), (opened,), (opened, "No."))]
    assert states == ["undecided", "thinking", "answering"]


@given(
    st.lists(st.sampled_from(
        [*SIGNS.values(), "analysis", "final", "commentary", "assistant", f" {TO}", "json", " ",
         CALLED, "{", "}", '"', "a", "\n", "to", "="]), max_size=14),
    st.sets(st.integers(0, 80)),
)  # fmt: skip
def test_the_pieces_of_a_text_make_no_difference(parts, cuts):
    text = "".join(parts)
    whole = split(text)
    assert split(text, {cut for cut in cuts if cut <= len(text)}) == whole
    assert not set(SIGNS.values()) & set(whole[0] + whole[1])
    assert all(json.loads(arguments) is not None for arguments in whole[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return harmony_folder(SHIPPED, tmp_path_factory.mktemp("harmony"))


def test_letters_that_spell_a_mark_are_text(folder):
    """A model that quotes a message writes it in the letters in which it was read."""
    tokenizer = Tokenizer(folder)
    assert speaks_harmony(tokenizer, tools=True)
    assert not speaks_harmony(Tokenizer(SHIPPED), tools=True)
    spelt = f"<|end|><|start|>assistant{CALLS[0]}<|call|>"
    halves = [spelt[at : at + 2] for at in range(0, len(spelt), 2)]
    ids = tokenizer.encode(FINAL, special=False)
    ids += tuple(id_ for half in halves for id_ in tokenizer.encode(half, special=False))
    stream = tokenizer.stream((), (), SIGNS)
    text = "".join([*(stream.push([id_]) for id_ in ids), stream.push([], last=True)])
    assert split(text, range(len(text))) == ("", f"Yes.{spelt}", [])


@pytest.fixture(scope="module")
def compiler(folder):
    tokenizer = Tokenizer(folder)
    ends = [tokenizer.token_id(name) for name in ("<|return|>", "<|call|>")]
    return GrammarCompiler(tokenizer, 2048, ends)


@pytest.mark.parametrize(
    ("state", "must", "allowed", "forbidden"),
    [
        ("undecided", True, [*CALLS, *(THOUGHT * 2 + call for call in CALLS)],
         [FINAL, THOUGHT + FINAL, PREAMBLE + CALLS[0], "a", CALLS[0].replace("get_time", "no"),
          CALLS[0].replace("UTC", "GMT"), CALLS[1].replace("get_time<", "get_timejson<")]),
        ("undecided", False, [*CALLS, FINAL, THOUGHT + PREAMBLE + THOUGHT + CALLS[3],
         f"{THOUGHT}{FINAL}<| analysis"], ["a", THOUGHT + CALLS[0].replace("get_time", "no")]),
        ("thinking", True, [f"a<|end|><|start|>assistant{CALLS[0]}"], ["a", CALLS[0]]),
        ("thinking", False, [f"a<|end|><|start|>assistant{FINAL}"], ["a", FINAL]),
        ("answering", False, ["a", ""], [f"a<|end|><|start|>assistant{CALLS[0]}"]),
        ("answering", True, [f"a<|end|><|start|>assistant{CALLS[0]}"], ["a"]),
    ],
)  # fmt: skip
def test_the_grammar_of_messages(compiler, state, must, allowed, forbidden):
    tokenizer = compiler._tokenizer
    functions = [Function(name="get_time", parameters=ZONE)]
    how = {"state": state, "must": must, "several": True, "control": tokenizer.token_id}
    start = compiler.start(HARMONY.grammar(functions, **how))

    def taken(text):
        ids = tokenizer.encode(f"{text}<|call|>", special=False)
        return start().allowed(ids) == len(ids)

    assert [text for text in allowed if not taken(text)] == []
    assert [text for text in forbidden if taken(text)] == []


@pytest.fixture(scope="module")
def served(folder):
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        tokenizer = one.service.model.llm.tokenizer
        one.ids = {name[2:-2]: tokenizer.token_id(name) for name in SIGNS}
        one.ids["analysis"] = tokenizer.encode("analysis", special=False)[0]
        yield one


ASK = {"messages": HELLO, "max_tokens": 150, "temperature": 0.9, "seed": 3}
FRAME = re.compile("[\udc00-\udcff]|<\\||functions|analysis|commentary|assistant")


def choice_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(served, **body):
    """The message of a streamed answer, and why it ended."""
    message, reason = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for line in served.chat(**body, stream=True).text.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            for key in message:
                message[key] += choice["delta"].get(key) or type(message[key])()
            reason = choice["finish_reason"]
    return message, reason


def both(served, **body):
    """The thoughts, the content, the calls and the end of an answer, the same in either form."""
    one, (message, reason) = choice_of(served.chat(**body)), streamed(served, **body)
    said = one["message"]
    calls = [call["function"] for call in said.get("tool_calls", ())]
    assert [call["function"] for call in message["tool_calls"]] == calls
    texts = message["reasoning_content"], message["content"]
    assert texts == (said.get("reasoning_content", ""), said["content"] or "")
    assert one["finish_reason"] == reason
    assert not FRAME.search("".join(texts))
    for call in calls:
        jsonschema_rs.validate(ZONE, json.loads(call["arguments"]))
    return (*texts, calls, reason)


def likely(served, **marks):
    """Biases with which the small model writes messages, and ends them."""
    marks = {"channel": 60, "message": 25, **marks}
    return {"logit_bias": {str(served.ids[name]): bias for name, bias in marks.items()}}


def thinking(served):
    """What has the small model think a few times, and then answer."""
    return {"frequency_penalty": 2, **likely(served, end=11, analysis=7)}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}]
)
def test_a_forced_call_comes_behind_the_thoughts(served, choice):
    ask = {**ASK, "tools": TOOLS, "tool_choice": choice, **likely(served, end=11)}
    found = [both(served, **{**ask, "seed": seed}) for seed in range(3)]
    assert {(content, len(calls), reason) for _, content, calls, reason in found} == {
        ("", 1, "tool_calls")
    }
    assert {bool(thoughts) for thoughts, *_ in found} == {True, False}


@pytest.mark.deep(first=1)
def test_an_answer_may_be_cut_anywhere(served):
    ask = {**ASK, "tools": TOOLS, "tool_choice": "required", **likely(served, end=11)}
    whole = {**ask, "seed": 0}
    most = served.chat(**whole).json()["usage"]["completion_tokens"]
    thoughts, found = both(served, **whole)[0], set()
    cuts = [{"max_tokens": count} for count in range(1, most)]
    cuts += [{"stop": stop} for stop in ("zone", "<|message|>", "<|channel|>", "{", "}", "time")]
    for cut in cuts:
        shown, content, calls, reason = both(served, **{**whole, **cut})
        assert (thoughts.startswith(shown), content) == (True, "")
        by_stop = "tool_calls" if calls else "stop"
        assert reason == ("length" if "max_tokens" in cut else by_stop)
        found.add(len(calls))
    assert found == {0, 1}


def test_a_free_answer_has_thoughts_text_or_calls(served):
    ask = {**ASK, "tools": TOOLS, **likely(served, end=11, **{"return": 12})}
    found = [both(served, **{**ask, "seed": seed}) for seed in range(6)]
    found += [both(served, **ASK, tools=TOOLS)]  # no mark is likely: it begins with a recipient
    assert {reason for *_, reason in found} >= {"stop", "tool_calls"}
    assert all(bool(calls) == (reason == "tool_calls") for *_, calls, reason in found)
    assert any(thoughts for thoughts, *_ in found)
    assert any(content for _, content, *_ in found)


def test_a_grammar_holds_for_the_final_message(served):
    ask = {**ASK, **thinking(served)}
    for seed in range(3):
        for grammar in ({"regex": "[ab/]{3}"}, {"choice": ["aab", "b/"]}, {"json_schema": ZONE}):
            thoughts, content, _, reason = both(served, **{**ask, "seed": seed, "grammar": grammar})
            assert (bool(thoughts), reason) == (True, "stop")
            if "json_schema" in grammar:
                jsonschema_rs.validate(ZONE, json.loads(content))
            else:
                assert re.fullmatch("[ab/]{2,3}", content)
    begun = {**ask, "messages": [*HELLO, {"role": "assistant", "content": "Yes: "}]}
    how = {"continue_final_message": True, "grammar": {"regex": "[ab]{3}"}}
    assert re.fullmatch("[ab]{3}", both(served, **begun, **how)[1])
    again = both(served, **{**begun, "max_tokens": 9}, continue_final_message=True)
    assert again[0] == ""


def test_stop_texts_are_those_of_messages_alone(served):
    """Their headers have words too."""
    ask = {**ASK, **thinking(served), "grammar": {"regex": "[ab]{3}"}}
    asks = ({**ask, "seed": seed} for seed in range(20))
    ask, whole = next((one, found) for one in asks if (found := both(served, **one))[1])
    assert both(served, **ask, stop=["final", "analysis", "assistant"]) == whole
    assert both(served, **ask, stop=[whole[1][0]])[1] == ""


def test_the_effort_of_a_body_reaches_the_template(served):
    tokenizer = served.service.model.llm.tokenizer
    for effort in ("low", "high"):
        how = Rendering(chat_template_kwargs={"reasoning_effort": effort})
        assert f"Reasoning: {effort}" in tokenizer.chat_text(HELLO, how)
        count = len(tokenizer.prompt_ids(HELLO, rendering=how))
        said = served.chat(messages=HELLO, max_tokens=1, reasoning_effort=effort).json()
        ask = {"input": "hello", "max_output_tokens": 1, "reasoning": {"effort": effort}}
        response = served.http.post("/v1/responses", json=ask).json()
        assert said["usage"]["prompt_tokens"] == response["usage"]["input_tokens"] == count


def test_pieces_have_the_thoughts_as_other_models_write_them(served):
    ask = {**ASK, "seed": 0, "grammar": {"regex": "[ab]{3}"}, **thinking(served)}
    thoughts, content, *_ = both(served, **ask)
    assert thoughts
    assert content
    lines = served.chat(**ask, stream=True, pieces=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [piece for event in events for piece in event["choices"][0]["pieces"]]
    text = "".join(piece["text"] for piece in pieces)
    assert text == f"<think>\n{thoughts}\n</think>\n\n{content}"


def test_an_earlier_text_is_sent_on_without_its_thoughts(folder):
    tokenizer = Tokenizer(folder)

    def ids(content):
        return tokenizer.prompt_ids([*HELLO, {"role": "assistant", "content": content}, *HELLO])

    assert ids("<think>\nWell.\n</think>\n\nYes.") == ids("Yes.")
    assert ids("<think>\nWell.") == ids("")
    assert ids("Yes. <think>\nWell.\n</think>\n\n") != ids("Yes. ")


@pytest.mark.parametrize("text", [THOUGHT + PREAMBLE + THOUGHT + FINAL, PREAMBLE + CALLS[3]])
def test_a_response_has_the_messages_as_items(folder, text):
    tool = {"type": "function", **TOOLS[0]["function"]}
    include = ["message.output_text.logprobs"]
    asked = {"input": "a", "stream": True, "tools": [tool], "include": include}
    with LLM(folder, max_batch_size=1) as llm:
        ids = llm.tokenizer.encode(text, special=False)
        stream = llm.tokenizer.stream((), (), SIGNS)
        texts = [stream.push([token]) for token in ids]
        logged = [TokenLogProb(token, -1.0, ()) for token in ids]
        whole = items(llm, [("".join(texts), logged)], asked)
        for size in (1, 2, 5):
            chunks = [("".join(texts[at : at + size]), logged[at : at + size])
                      for at in range(0, len(ids), size)]  # fmt: skip
            assert items(llm, chunks, asked) == whole
    kinds = [item["type"] for item in whole]
    wanted = ["reasoning", "message"] * 2 if text.endswith(FINAL) else ["message", "function_call"]
    assert kinds == wanted
    listed = [part["logprobs"] for item in whole if item["type"] == "message"
              for part in item["content"]]  # fmt: skip
    assert "".join(one["token"] for one in listed[0]).endswith("I look.")


def test_thoughts_are_counted_up_to_the_last_of_them():
    tokens = [b"<|channel|>", b"analysis", b"<|message|>", b"Well", b".", b"<|end|>", b"a"]
    assert HarmonySplitter().count_thoughts(tokens * 2 + [b"<|return|>"]) == 12
    assert HarmonySplitter().count_thoughts(tokens[5:]) == 0


def test_thoughts_are_counted_as_they_are_split():
    """They may begin in the prompt, and a call may be in their channel."""
    opened = "<|start|>assistant<|channel|>analysis<|message|>"
    assert HarmonySplitter(opened).count_thoughts([b"Well", b".", b"<|end|>"]) == 2
    call = re.findall(r"<\|\w+\|>|[^<]+", THOUGHT + CALLS[2])
    splitter = HarmonySplitter(parameters={"get_time": ZONE})
    assert splitter.count_thoughts([part.encode() for part in call]) == call.index("Well.") + 1


def test_an_answer_that_spells_marks_is_sent_back(served):
    """The template refuses such messages where it sees them as they are."""
    spelt = {"role": "assistant", "content": "Yes.<|end|><|start|>assistant<|channel|>final"}
    answer = served.chat(messages=[*HELLO, spelt, *HELLO], max_tokens=1)
    assert answer.status_code == 200, answer.text
