"""Items of responses, and their log probabilities: the same whole and streamed."""

from __future__ import annotations

import codecs

import pytest

from tests.support.chat_templates import HERMES_TOOLS, QWEN_CODER_TOOLS, with_template
from tests.support.response_items import items
from tests.support.served import SHIPPED
from trtla import LLM
from trtla.runtime.request import TokenLogProb

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>hm</think>"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
ASKED = {
    "input": "a",
    "stream": True,
    "include": ["message.output_text.logprobs"],
    "tools": [TOOL],
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    template = HERMES_TOOLS + "{# <think> </think> #}"
    with LLM(with_template(SHIPPED, tmp_path_factory.mktemp("logged"), template)) as one:
        yield one


@pytest.mark.parametrize(
    "text",
    [
        f"Hello. {CALL}",
        f"Hello. {CALL}\nBye.",
        f"{THOUGHT}Hello. {CALL}",
        THOUGHT + CALL,
        CALL,
        "H\u00e9llo \U0001f600.",
    ],
)
def test_log_probabilities_are_of_the_same_items_whole_and_streamed(llm, text):
    ids, decoder = (
        llm.tokenizer.encode(text, special=False),
        codecs.getincrementaldecoder("utf-8")(),
    )
    tokens = [TokenLogProb(token, -1.0, ()) for token in ids]
    texts = [decoder.decode(llm.spell(token)) for token in ids]
    whole = items(llm, [(text, tokens)], ASKED)
    for size in (1, 2, 5):
        parts = range(0, len(ids), size)
        chunks = [("".join(texts[at : at + size]), tokens[at : at + size]) for at in parts]
        assert items(llm, chunks, ASKED) == whole
    shown = [item["content"][0] for item in whole if item["type"] == "message"]
    bare = text.replace(CALL, "").replace(THOUGHT, "")
    assert " ".join(one["text"] for one in shown).split() == bare.split()
    assert all(one["logprobs"] for one in shown)


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (HERMES_TOOLS, CALL),
        (QWEN_CODER_TOOLS, "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
    ],
)
def test_items_are_in_the_order_of_the_text(tmp_path, template, call):
    asked = {**ASKED, "include": []}
    with LLM(with_template(SHIPPED, tmp_path, template)) as one:
        text = f"One.{call}\nTwo."
        whole = items(one, [(text, [])], asked)
        assert whole == items(one, [(sign, []) for sign in text], asked)
    assert [item["type"] for item in whole] == ["message", "function_call", "message"]
