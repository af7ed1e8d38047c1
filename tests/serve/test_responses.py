"""OpenAI's Responses API, read with the types of OpenAI's client: whole, streamed, and in turns."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain, groupby

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.chat_templates import HERMES_TOOLS, THINKING, with_template
from tests.support.served import JSON, SHIPPED, refused, serving, slow_down, until
from trtla import LLM
from trtla.api.responses.body import NEUTRAL

EVENTS = TypeAdapter(ResponseStreamEvent)
PROMPT = "def add(a, b):"
CHAT = [{"role": "user", "content": PROMPT}]
HOW = {"temperature": 0.7, "seed": 3}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"],
        "additionalProperties": False}  # fmt: skip
TOOLS = [
    {"type": "function", "name": name, "description": f"It does {name}.", "parameters": schema,
     "strict": True}
    for name, schema in (("get_weather", CITY), ("get_time", ZONE))
]  # fmt: skip
TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done"]  # fmt: skip
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done"]  # fmt: skip


@pytest.fixture(scope="module")
def tooled(tmp_path_factory):
    folder = with_template(SHIPPED, tmp_path_factory.mktemp("tools"), HERMES_TOOLS)
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        yield one


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    folder = with_template(SHIPPED, tmp_path_factory.mktemp("thinking"), THINKING, "</think>")
    with serving(partial(LLM, folder, max_batch_size=2)) as one:
        yield one


def client_of(served):
    return openai.OpenAI(base_url=served.api, api_key="none", max_retries=0)


def respond(served, **body):
    answer = served.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


def streamed(served, **body):
    """The events of a stream, each of OpenAI's types, numbered and named."""
    answer = served.http.post("/v1/responses", json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENTS.validate_python(event, strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds_of(events):
    """The kinds of events in their order, deltas of one text as one."""
    return [kind.removeprefix("response.") for kind, _ in groupby(one["type"] for one in events)]


def without_ids(response):
    """What two answers to one request have in common."""
    kept = {key: item for key, item in response.items() if key not in ("id", "created_at", "usage")}
    kept["output"] = [
        {key: item for key, item in one.items() if key not in ("id", "call_id")}
        for one in response["output"]
    ]
    return {key: item for key, item in kept.items() if key != "completed_at"}


def test_a_response_is_the_text_of_plain_decoding(served, plain):
    with client_of(served) as client:
        done = client.responses.create(
            model="tiny", input=PROMPT, max_output_tokens=20, temperature=0.7,
            extra_body={"seed": 3}, metadata={"run": "1"},
        )  # fmt: skip
    assert done.output_text == plain(CHAT, 20, 0.7, 3)
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (done.usage.output_tokens, done.metadata, done.store) == (20, {"run": "1"}, False)
    assert done.usage.total_tokens == done.usage.input_tokens + 20
    whole = respond(served, input=PROMPT, stop=["\n"], temperature=0)
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)


def test_a_stream_has_openais_events_and_the_same_response(served, plain):
    ask = {"input": PROMPT, "max_output_tokens": 20, **HOW}
    for more, end in (({}, "incomplete"), ({"stop": ["\n", "a"]}, "completed")):
        events = streamed(served, **ask, **more)
        assert kinds_of(events) == ["created", "in_progress", *TEXT, end]
        assert without_ids(events[-1]["response"]) == without_ids(respond(served, **ask, **more))
        assert len({one["response"]["id"] for one in events if "response" in one}) == 1
        deltas = "".join(one["delta"] for one in events if "delta" in one)
        assert deltas == plain(CHAT, 20, 0.7, 3, **more)
    with client_of(served) as client:
        how = {"model": "tiny", "input": PROMPT, "temperature": 0, "extra_body": {"stop": ["\n"]}}
        with client.responses.stream(**how) as stream:
            texts = [one.delta for one in stream if one.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == "".join(texts)


def test_log_probabilities_are_those_of_a_chat(served):
    ask = {"max_output_tokens": 6, **HOW, "top_logprobs": 2}
    whole = respond(served, input=PROMPT, include=["message.output_text.logprobs"], **ask)
    events = streamed(served, input=PROMPT, **ask)
    (part,) = whole["output"][0]["content"]
    pieces = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
    assert part["logprobs"] == events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    told = [*chain(*pieces)]
    assert told == part["logprobs"][: len(told)] != []
    chat = served.chat(messages=CHAT, max_tokens=6, **HOW, logprobs=True, top_logprobs=2).json()
    assert part["logprobs"] == chat["choices"][0]["logprobs"]["content"]


def test_an_answer_follows_a_schema(served):
    class Sky(BaseModel):
        blue: bool
        hour: int

    with client_of(served) as client:
        done = client.responses.parse(model="tiny", input=PROMPT, text_format=Sky, temperature=0)
    assert isinstance(done.output_parsed, Sky)
    form = {"type": "json_schema", "name": "one", "schema": {"enum": [7]}}
    assert respond(served, input=PROMPT, text={"format": form})["text"] == {"format": form}


@pytest.mark.parametrize("name", [None, "get_time"])
def test_a_forced_call_is_an_item_whole_and_streamed(tooled, name):
    choice = {"type": "function", "name": name} if name else "required"
    ask = {"input": PROMPT, "tools": TOOLS, "tool_choice": choice, "max_output_tokens": 150,
           "parallel_tool_calls": False, **HOW}  # fmt: skip
    whole, events = respond(tooled, **ask), streamed(tooled, **ask)
    assert kinds_of(events) == ["created", "in_progress", *CALL, "completed"]
    (call,) = whole["output"]
    assert (call["type"], call["status"]) == ("function_call", "completed")
    assert name in (None, call["name"])
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    assert whole["tools"] == TOOLS
    assert whole["tool_choice"] == choice


def test_functions_of_a_namespace_are_called_by_their_names(tooled):
    group = {"type": "namespace", "name": "clock", "description": "Time.", "tools": TOOLS[1:]}
    ask = {"input": PROMPT, "tools": [TOOLS[0], group], "max_output_tokens": 150,
           "tool_choice": {"type": "function", "name": "get_time"}, **HOW}  # fmt: skip
    whole = respond(tooled, **ask)
    (call,) = whole["output"]
    assert (call["name"], call["namespace"], whole["tools"][1]) == ("get_time", "clock", group)
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12:00"}
    again = {**ask, "input": [*CHAT, call, output], "tool_choice": "none", "max_output_tokens": 4}
    assert respond(tooled, **again)["output"][0]["type"] == "message"
    twice = {**ask, "tools": [*TOOLS, group]}
    said = refused(tooled.http.post("/v1/responses", json=twice), 400, "tools")
    assert "two functions named get_time" in said


def test_an_agent_takes_three_turns_with_two_tools(tooled):
    items = [{"role": "user", "content": "What is the weather, and what time is it?"}]
    with client_of(tooled) as client:
        for name in ("get_weather", "get_time", None):
            choice = {"type": "function", "name": name} if name else "none"
            ask = {"model": "tiny", "input": items, "instructions": "Be brief.", "tools": TOOLS,
                   "tool_choice": choice, "max_output_tokens": 120, "temperature": 0.0}  # fmt: skip
            if name == "get_weather":
                with client.responses.stream(**ask) as stream:
                    done = stream.get_final_response()
            else:
                done = client.responses.create(**ask)
            items += [item.model_dump(warnings=False) for item in done.output]
            calls = [item for item in done.output if item.type == "function_call"]
            assert [call.name for call in calls] == [name] * bool(name)
            for call in calls:
                json.loads(call.arguments)
                output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
                items.append(output)
    assert [item.get("type") for item in items[1:]] == [
        *("function_call", "function_call_output") * 2,
        "message",
    ]
    assert done.output_text


def test_thoughts_are_an_item_and_can_be_sent_back(thinking):
    end = str(thinking.service.model.llm.tokenizer.token_id("</think>"))
    ask = {"input": PROMPT, "max_output_tokens": 30, **HOW, "logit_bias": {end: 6.0}}
    include = ["reasoning.encrypted_content"]
    whole, events = respond(thinking, **ask, include=include), streamed(thinking, **ask)
    thought, message = whole["output"]
    assert (thought["type"], message["type"]) == ("reasoning", "message")
    assert thought["content"][0]["text"]
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < 30
    thoughts = [name.replace("output_text", "reasoning_text") for name in TEXT]
    assert kinds_of(events) == ["created", "in_progress", *thoughts, *TEXT, "incomplete"]
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    chat = {"messages": CHAT, "max_tokens": 30, **HOW, "logit_bias": {end: 6.0}}
    said = thinking.chat(**chat).json()["choices"][0]["message"]
    assert said["reasoning_content"] == thought["content"][0]["text"]
    turns = [*CHAT, thought, message, *CHAT]
    again = respond(thinking, **{**ask, "input": turns})["usage"]["input_tokens"]
    there = thinking.chat(**{**chat, "messages": [*CHAT, said, *CHAT]}).json()
    assert again == there["usage"]["prompt_tokens"]
    quiet = respond(thinking, **{**ask, "reasoning": {"effort": "none"}})
    assert [item["type"] for item in quiet["output"]] == ["message"]


def test_a_text_that_fails_ends_its_stream_with_the_reason(monkeypatch):
    with serving(request_timeout=4) as served:
        slow_down(served, monkeypatch)
        events = streamed(served, input=PROMPT, max_output_tokens=1500, ignore_eos=True)
    assert kinds_of(events)[-1] == "failed"
    assert "--request-timeout" in events[-1]["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "a text, or a list of items"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0.type", "'message', 'func"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0.type", "'input_text'"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input",
         "the call a, which no message in front of it has"),
        ({"input": [*CHAT, {"role": "assistant", "content": "a"}]}, "input", "ends with an answer"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "has no message"),
        ({"input": [{"type": "function_call", "call_id": "a|b", "name": "f", "arguments": "{}"}]},
         "input.0.call_id", "must be at most 128 letters, digits"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "a b", "arguments": "{}"}]},
         "input.0.name", "must be a name of at most 64 letters, digits"),
        ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f", "input": ""}]},
         "input.0.type", "'function_call'"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "not supported; omit it"),
        ({"safety_identifier": 5}, "safety_identifier", "must be a text"),
        ({"tools": [{"type": "\ud800"}]}, "tools", "tools has"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "form of chats"),
        ({"tools": [{"type": "function", "name": "f", "paramters": {}}]}, "tools.0",
         "use parameters"),
        ({"system": "a"}, "system", "use instructions"),
        ({"logprobs": True}, "logprobs", "use include"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools has 'web_search'"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "letters, digits"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]},
         "tools.0.tools.0.name", "missing"),
        ({"tool_choice": "required"}, "tool_choice", "there are none"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", '"name": "..."'),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"conversation": "conv_1"}, "conversation", "not stored"),
        ({"background": True}, "background", "keep the connection open"),
        ({"truncation": "auto"}, "truncation", "shorten the input"),
        ({"max_tokens": 3}, "max_tokens", "use max_output_tokens"),
        ({"response_format": {}}, "response_format", "use text.format"),
        ({"n": 2}, "n", "a field of /v1/chat/completions"),
        ({"metadata": {"a": 1}}, "metadata", "at most 16 texts"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"a": "\ud800"}}]}, "tools",
         "half of a surrogate pair"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "without a schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "foo": 1}}}, "text.format",
         "'foo' is not supported beside a schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": "x"}}}, "text.format",
         "strict beside a schema is 'x'; give true or false"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "text.format: the type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "has no switch for it"),
        ({"stream_options": {}}, "stream_options", "for streams"),
        ({"max_output_tokens": 5000}, "input", "lower max_output_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_its_name(served, body, param, said):
    asked = {"input": PROMPT} if body else {}
    data = json.dumps({**asked, **body})
    answer = served.http.post("/v1/responses", content=data, headers=JSON)
    assert said in refused(answer, 400, param)


def test_a_number_that_could_not_be_repeated_is_refused(served):
    """It is infinity to Python, and no client reads that."""
    tools = '[{"type": "function", "name": "f", "parameters": {"maximum": -1e999}}]'
    data = f'{{"input": "hi", "tools": {tools}}}'
    answer = served.http.post("/v1/responses", content=data, headers=JSON)
    assert "tools has a number beyond JSON's" in refused(answer, 400, "tools")


def test_what_requests_nothing_is_taken(served):
    neutral = {name: values[0] for name, values in NEUTRAL.items()}
    more = {"store": True, "reasoning": {"effort": "none", "summary": "auto"}, "user": "u",
            "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
            "client_metadata": {"a": "b"}, "prompt_cache_key": "k", "tools": []}  # fmt: skip
    ask = {"input": PROMPT, "max_output_tokens": 4, "temperature": 0}
    assert (
        respond(served, **ask, **more, **neutral)["output"][0]["content"]
        == (respond(served, **ask)["output"][0]["content"])
    )


ASKED = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"}
ANSWERED = {"type": "function_call_output", "call_id": "a", "output": "b"}
SECRET = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
SAID = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
NO = {"type": "refusal", "refusal": "No."}
SOURCE = {"type": "url_citation", "url": "a", "start_index": 0, "end_index": 1}
CITED = {"type": "output_text", "text": "No.", "logprobs": [], "annotations": [SOURCE]}


@pytest.mark.parametrize(
    ("items", "same"),
    [
        ([*CHAT, SECRET, ASKED, SECRET, ANSWERED], [*CHAT, ASKED, ANSWERED]),
        ([*CHAT, {**SAID, "content": [NO]}, *CHAT],
         [*CHAT, {"role": "assistant", "content": "No."}, *CHAT]),
        ([*CHAT, {**SAID, "content": [CITED], "phase": "commentary"}, *CHAT],
         [*CHAT, {"role": "assistant", "content": "No."}, *CHAT]),
        ([SECRET, *CHAT], CHAT),
        ([*CHAT, ASKED, {**ASKED, "call_id": "c"}, {**ANSWERED, "call_id": "c"}, ANSWERED],
         [*CHAT, ASKED, {**ASKED, "call_id": "c"}, {**ANSWERED, "call_id": "c"}, ANSWERED]),
        ([*CHAT, {**ASKED, "arguments": "{a"}, ANSWERED, ANSWERED],
         [*CHAT, {**ASKED, "arguments": "{a"}, ANSWERED, ANSWERED]),
    ],
)  # fmt: skip
def test_items_of_other_models_are_taken(tooled, items, same):
    """Thoughts that cannot be read, refusals, sources, and calls in an odd order."""
    ask = {"max_output_tokens": 1, "temperature": 0, "tools": TOOLS}
    counts = [respond(tooled, input=one, **ask)["usage"]["input_tokens"] for one in (items, same)]
    assert counts[0] == counts[1]


def test_a_stream_that_is_left_ends_its_response(served):
    ask = {"input": PROMPT, "max_output_tokens": 1500, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with served.http.stream("POST", "/v1/responses", json=ask) as answer:
            assert next(answer.iter_lines()) == "event: response.created"
    until(lambda: served.stats().running == served.stats().waiting == 0)
    assert served.stats().kv_cache_usage == 0


@pytest.mark.parametrize("path", ["resp_1", "resp_1/input_items", "resp_1/cancel"])
def test_responses_are_not_stored(served, path):
    for method in ("GET", "DELETE", "POST"):
        how = {"json": {}} if method == "POST" else {}
        answer = served.http.request(method, f"/v1/responses/{path}", **how)
        assert "responses are not stored" in refused(answer, 404)
