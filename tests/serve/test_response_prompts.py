"""The same conversation by chat completions and by responses: the same prompt, the same text."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from tests.support.chat_templates import (
    CHATML,
    HERMES_TOOLS,
    LLAMA_3_TOOLS,
    MISTRAL_TOOLS,
    THINKING,
    with_template,
)
from tests.support.examples import examples
from tests.support.served import SHIPPED, serving
from trtla import LLM
from trtla.api.answers import Labels
from trtla.api.errors import ApiError
from trtla.api.generation import Generation, answers_to
from trtla.api.protocol import ChatBody
from trtla.api.reading import read_body
from trtla.api.responses.answer import ResponseWriter, response_answers
from trtla.api.responses.body import read_response

KINDS = {"chatml": CHATML, "hermes": HERMES_TOOLS, "llama": LLAMA_3_TOOLS,
         "mistral": MISTRAL_TOOLS, "thinking": THINKING}  # fmt: skip
WORDS = st.text("ab {}\"'\\<é\n", max_size=6).map(lambda text: f"w{text}w")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTIONS = [
    {"name": "f", "description": "It does f.", "parameters": SCHEMA},
    {"parameters": SCHEMA, "strict": True, "name": "get_a-b"},
]
CHOICES = [None, "auto", "required", "none", {"type": "function", "function": {"name": "f"}}]


@st.composite
def conversations(draw):
    """Turns of a user, an assistant with thoughts and calls or none, and tools."""
    messages = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        messages.append({"role": "user", "content": draw(WORDS)})
        more = draw(st.just({}) | WORDS.map(lambda text: {"reasoning_content": text}))
        content = draw(WORDS)
        if draw(st.booleans()):
            calls = [
                {"id": f"call{number:05}", "type": "function",
                 "function": {"name": "f", "arguments": json.dumps({"a": draw(WORDS)})}}
                for number in range(draw(st.integers(1, 2)))
            ]  # fmt: skip
            content = draw(st.none() | WORDS)
            messages.append({"role": "assistant", "content": content, "tool_calls": calls, **more})
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)}
                for call in calls
            ]
            content, more = draw(WORDS), {}
        messages.append({"role": "assistant", "content": content, **more})
    parts = st.lists(WORDS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=2)
    messages.append({"role": "user", "content": draw(WORDS | parts)})
    return messages


def items_of(messages):
    """A conversation as items of a response's input."""
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            yield {"type": "function_call_output", "call_id": message["tool_call_id"],
                   "output": content}  # fmt: skip
        elif message["role"] == "assistant":
            if thoughts := message.get("reasoning_content"):
                text = {"type": "reasoning_text", "text": thoughts}
                yield {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text]}
            if content is not None:
                text = {"type": "output_text", "text": content, "annotations": []}
                yield {"type": "message", "id": "msg_1", "role": "assistant", "content": [text],
                       "status": "completed"}  # fmt: skip
            for call in message.get("tool_calls", ()):
                yield {"type": "function_call", "call_id": call["id"], **call["function"]}
        elif isinstance(content, list):
            yield {**message, "content": [{**part, "type": "input_text"} for part in content]}
        else:
            yield message


def asked(messages, tools, choice, instructs):
    """One request, as a chat's body and as a response's."""
    chat = {"messages": messages, "temperature": 0.9, "seed": 3}
    items, flat = list(items_of(messages)), choice
    response = {"input": items, "temperature": 0.9, "seed": 3}
    if instructs and messages[0]["role"] == "system":
        response |= {"instructions": messages[0]["content"], "input": items[1:]}
    if tools:
        if isinstance(choice, dict):
            flat = {"type": "function", "name": choice["function"]["name"]}
        chat |= {"tool_choice": choice, "parallel_tool_calls": False}
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
        response |= {"tool_choice": flat, "parallel_tool_calls": False}
        response["tools"] = FLAT
    return {**chat, "max_tokens": 40}, {**response, "max_output_tokens": 40}


FLAT = [{"type": "function", **tool} for tool in FUNCTIONS]
ASKED = st.builds(
    asked, conversations(), st.sampled_from([[], FUNCTIONS]), st.sampled_from(CHOICES),
    st.booleans(),
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    folder = with_template(
        SHIPPED, tmp_path_factory.mktemp(request.param), KINDS[request.param], "</think>"
    )
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        yield one


def made(make):
    """What the text depends on, or how the request is refused."""
    try:
        (answer,) = make()
    except ApiError as error:
        event(f"refused {error.message}")
        return error.status, error.code
    event("made")
    one = answer.request
    return one.given_ids, one.sampling, one.end_ids


@pytest.fixture(scope="module")
def thoughtful(tmp_path_factory):
    """A model with a format of calls, whose template marks thoughts."""
    template = f"{HERMES_TOOLS}{{# <think> </think> #}}"
    folder = with_template(SHIPPED, tmp_path_factory.mktemp("both"), template)
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        yield one


@examples(100, deadline=None, suppress_health_check=list(HealthCheck))
@given(ASKED)
def test_both_routes_make_the_same_request(served, bodies):
    chat, response = (json.dumps(body).encode() for body in bodies)
    llm = served.service.model.llm
    asked = read_response(response)
    first = made(lambda: answers_to(read_body(ChatBody, chat), llm))
    assert made(lambda: response_answers(asked.chat, llm)) == first


@examples(16, deadline=None, suppress_health_check=list(HealthCheck))
@given(ASKED)
def test_both_routes_answer_with_the_same_text(served, bodies):
    chat, response = bodies
    whole = served.chat(**chat)
    answer = served.http.post("/v1/responses", json=response)
    assert answer.status_code == whole.status_code
    if whole.status_code != 200:  # the template takes no such messages
        return
    message, parts = whole.json()["choices"][0]["message"], {"reasoning": "", "message": ""}
    calls = []
    for item in answer.json()["output"]:
        if item["type"] == "function_call":
            calls.append({"name": item["name"], "arguments": item["arguments"]})
        else:
            parts[item["type"]] += item["content"][0]["text"]
    assert parts["message"] == (message["content"] or "")
    assert parts["reasoning"] == message.get("reasoning_content", "")
    assert calls == [call["function"] for call in message.get("tool_calls", ())]
    usage = whole.json()["usage"]
    assert answer.json()["usage"]["input_tokens"] == usage["prompt_tokens"]
    assert answer.json()["usage"]["output_tokens"] == usage["completion_tokens"]


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
PIECES = [CALL, "a", "\n", "<tool_call>", '{"name": "f", "arguments": ', "{}}", "<think>",
          "</think>"]  # fmt: skip


@examples(200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sets(st.integers(0, 80)))
def test_the_pieces_of_an_answer_make_the_same_items(thoughtful, parts, cuts):
    """Texts and calls in their order, however the answer arrives."""
    llm, text = thoughtful.service.model.llm, "".join(parts)
    asked = read_response(json.dumps({"input": "a", "tools": FLAT, "stream": True}).encode())
    (answer,) = response_answers(asked.chat, llm)
    ended = SimpleNamespace(finish_reason="end_id")

    def items(*edges):
        generation = Generation([answer])
        writer = ResponseWriter(asked, asked.chat, Labels("key", 0, "tiny"), generation, llm)
        events = []
        for a, b in pairwise([0, *edges, len(text)]):
            events += writer._grow(text[a:b], (), ended if b == len(text) else None)
        done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
        assert done == writer._output.items
        return done

    assert items() == items(*sorted(cut for cut in cuts if 0 < cut < len(text)))
