"""Thoughts come apart from the answer, whole and streamed; templates take variables."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chat_templates import CHATML, THINKING, with_template
from tests.support.served import SHIPPED, refused, serving
from trtla import LLM, SamplingParams
from trtla.api.reasoning import BEGIN, END, ReasoningSplitter
from trtla.errors import UsageError
from trtla.llm.text import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
QUIET = {"enable_thinking": False}


def split(text: str, cuts, prompt: str = "", begun: str = "") -> tuple[str, str]:
    """Both parts of a text that comes in pieces."""
    splitter = ReasoningSplitter(prompt, begun)
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    parts = [splitter.push(piece) for piece in pieces]
    parts.append(splitter.push("", last=True))
    return "".join(one[0] for one in parts), "".join(one[1] for one in parts)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nWell,\n\nyes.\n</think>\n\nYes.\n", "Well,\n\nyes.", "Yes.\n"),
        ("\n<think></think>Yes.", "", "Yes."),
        ("<think>no end <", "no end <", ""),
        ("<think>no end </thin", "no end", ""),
        (" <thing> is no mark</think>", "", " <thing> is no mark</think>"),
        ("<thi", "", ""),
        ("", "", ""),
        ("<think>a <think> b</think> c</think> d", "a <think> b", "c</think> d"),
    ],
)
def test_an_answer_has_two_parts(text, reasoning, content):
    every = range(len(text))
    assert split(text, ()) == split(text, every) == (reasoning, content)


def test_a_prompt_may_open_the_thoughts_or_close_them():
    text = "\nfirst\n</think>\n\n second"
    assert split(text, (3, 9), "...<think>\n") == ("first", "second")
    assert split(text, (3, 9), "<think>\n\n</think>\n\n") == ("", text)
    assert split(text, (3, 9), "What is <think>?") == ("", text)
    assert split(" on</think> it", (), "", "<think>Go") == (" on", "it")
    assert split(" on", (), "", "<think>a</think> Go") == ("", " on")


@given(
    st.lists(st.sampled_from([BEGIN, END, "<", "</think", " ", "\n", "a", "b c"]), max_size=8),
    st.sets(st.integers(0, 60)),
    st.sampled_from(["", BEGIN, f"{BEGIN}\n{END}"]),
)
def test_the_pieces_of_a_text_make_no_difference(parts, cuts, prompt):
    text = "".join(parts)
    whole = split(text, (), prompt)
    assert split(text, {cut for cut in cuts if cut <= len(text)}, prompt) == whole
    assert set("".join(whole)) <= set(text)


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    return with_template(SHIPPED, tmp_path_factory.mktemp("thinking"), THINKING)


@pytest.fixture(scope="module")
def served(thinking):
    with serving(partial(LLM, thinking, max_batch_size=2)) as one:
        yield one


def _without_marks():
    tokenizer = Tokenizer(SHIPPED)
    spelt = ((token, tokenizer.token_bytes(token)) for token in range(2048))
    return {token: -100.0 for token, data in spelt if b"<" in data or not data.strip()}


WORDS = _without_marks()
"""Biases with which no token begins a mark or is blank."""
ASK = {
    "messages": HELLO, "max_tokens": 12, "temperature": 0.7, "seed": 4,
    "logit_bias": {str(token): bias for token, bias in WORDS.items()},
}  # fmt: skip


def deltas(served, **body):
    """The joined parts of a streamed answer."""
    parts = {"reasoning_content": "", "content": ""}
    for line in served.chat(**body, stream=True).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                for key in parts:
                    parts[key] += choice["delta"].get(key, "")
    return parts


def test_thoughts_come_apart_whole_and_streamed(served):
    thought = served.chat(**ASK).json()["choices"][0]["message"]
    assert thought["content"] == ""
    assert thought["reasoning_content"]
    streamed = deltas(served, **ASK)
    assert streamed == {key: thought[key] for key in streamed}


def test_a_variable_of_the_template_changes_the_prompt(served, thinking):
    said = served.chat(**ASK, chat_template_kwargs=QUIET).json()["choices"][0]["message"]
    assert "reasoning_content" not in said
    assert deltas(served, **ASK, chat_template_kwargs=QUIET)["content"] == said["content"]
    how = SamplingParams(12, temperature=0.7, seed=4, logit_bias=WORDS)
    with LLM(thinking, chat_template_kwargs=QUIET) as llm:
        (by_default,) = llm.chat(HELLO, how)
        (of_request,) = llm.chat(HELLO, how, chat_template_kwargs={"enable_thinking": True})
    assert by_default.input_text.endswith("</think>\n\n")
    assert by_default.text == said["content"]
    assert of_request.input_text.endswith("<think>\n")


def test_an_answer_can_be_sent_back(served):
    answer = served.chat(**ASK).json()["choices"][0]["message"]
    again = served.chat(**{**ASK, "messages": [*HELLO, answer, *HELLO]})
    assert again.status_code == 200, again.text
    longer = again.json()["usage"]["prompt_tokens"]
    bare = {key: answer[key] for key in ("role", "content")}
    without = served.chat(**{**ASK, "messages": [*HELLO, bare, *HELLO]})
    assert without.json()["usage"]["prompt_tokens"] < longer


def test_a_template_without_thoughts_splits_nothing(tmp_path):
    with serving(partial(LLM, with_template(SHIPPED, tmp_path, CHATML))) as one:
        message = one.chat(**ASK).json()["choices"][0]["message"]
    assert message.keys() == {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"messages": []}, "chat_template_kwargs may not set messages"),
        ({"add_generation_prompt": False}, "chat_template_kwargs may not set add_generation"),
        (["a"], "chat_template_kwargs"),
    ],
)
def test_variables_that_have_a_place_of_their_own_are_refused(served, variables, said):
    answer = served.chat(**ASK, chat_template_kwargs=variables)
    assert said in refused(answer, 400, "chat_template_kwargs")


def test_variables_are_for_conversations(thinking):
    with LLM(thinking, max_batch_size=1) as llm:
        with pytest.raises(UsageError, match="chat_template_kwargs is for conversations"):
            llm.generate("hello", chat_template_kwargs=QUIET)
        with pytest.raises(UsageError, match="is no JSON"):
            llm.chat(HELLO, chat_template_kwargs={"a": object()})
