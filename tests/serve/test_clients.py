"""The official OpenAI client, the llm tool and LangChain against the server, over a real socket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.support.served import refused, serving

PROMPT = "def read_file(path"
CHAT = [{"role": "user", "content": "def add(a, b):"}]


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.api, api_key="none", max_retries=0) as one:
        yield one


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.root, model.max_model_len) == ("tiny", "tiny", 2048)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_completion_is_the_text_of_plain_decoding(client, plain, temperature):
    how = {"max_tokens": 24, "temperature": temperature, "seed": 5}
    done = client.completions.create(model="tiny", prompt=PROMPT, **how)
    (choice,) = done.choices
    assert choice.text == plain(PROMPT, 24, temperature, 5)
    assert choice.finish_reason == "length"
    assert done.usage.completion_tokens == 24
    assert done.usage.total_tokens == done.usage.prompt_tokens + 24
    assert done.object == "text_completion"


def test_penalties_and_biases_are_those_of_plain_decoding(client, plain):
    own = {"frequency_penalty": 0.7, "presence_penalty": -0.5}
    ours = {"repetition_penalty": 1.2, "min_p": 0.05}
    done = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=24, temperature=0.8, seed=5,
        logit_bias={"17": -100, "30": 1.5}, extra_body=ours, **own,
    )  # fmt: skip
    (choice,) = done.choices
    more = {"logit_bias": {17: -100, 30: 1.5}, **ours, **own}
    assert choice.text == plain(PROMPT, 24, 0.8, 5, **more) != plain(PROMPT, 24, 0.8, 5)


def test_the_usual_length_of_a_completion_is_no_more_than_the_context_leaves(served):
    room = served.http.get("/v1/models").json()["data"][0]["max_model_len"]
    ask = {"prompt": [5] * (room - 3), "temperature": 0, "ignore_eos": True}
    assert served.complete(**ask).json()["usage"]["completion_tokens"] == 3
    refused(served.complete(**ask, max_tokens=16), 400, "prompt", "context_length_exceeded")


def test_a_stream_brings_the_same_text_and_then_the_usage(client, plain):
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            max_completion_tokens=20,
            temperature=0.7,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [one.choices[0] for one in chunks if one.choices]
    assert texts[0].delta.role == "assistant"
    assert "".join(one.delta.content for one in texts) == plain(CHAT, 20, 0.7, 3)
    assert [one.finish_reason for one in texts if one.finish_reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == 20
    assert all(one.usage is None for one in chunks[:-1])


def test_end_tokens_can_be_ignored(served, client):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    (usual,) = client.completions.create(**asked).choices
    llm = served.service.model.llm
    first = llm.tokenizer.encode(usual.text, special=False)[0]
    before, llm.end_ids = llm.end_ids, frozenset({first})
    try:
        ended = client.completions.create(**asked)
        ignored = client.completions.create(**asked, extra_body={"ignore_eos": True})
    finally:
        llm.end_ids = before
    assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", 1)
    assert ignored.choices[0].text == usual.text


def test_a_chat_fills_the_context_where_no_length_is_given(client):
    done = client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0, stop=["\n"], seed=1
    )
    assert done.choices[0].finish_reason == "stop"
    assert "\n" not in done.choices[0].message.content


def test_choices_have_seeds_of_their_own(client, plain):
    done = client.completions.create(
        model="tiny", prompt=[PROMPT, "import "], n=3, temperature=1.0, seed=7, max_tokens=8
    )
    assert [one.index for one in done.choices] == list(range(6))
    wanted = [plain(text, 8, 1.0, 7 + i) for text in (PROMPT, "import ") for i in range(3)]
    assert [one.text for one in done.choices] == wanted


def test_a_prediction_is_drafted_from_and_changes_nothing(client, plain):
    expected = plain(CHAT, 32)
    done = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        temperature=0,
        max_tokens=32,
        prediction={"type": "content", "content": expected},
    )
    assert done.choices[0].message.content == expected
    details = done.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0


def test_a_context_that_is_too_short_is_said_by_its_code(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a " * 3000, max_tokens=5)
    assert caught.value.code == "context_length_exceeded"
    assert "2048" in caught.value.message


def test_keys_and_models_have_errors_of_their_own():
    with serving(keys=(b"secret",)) as served:
        for key, error in (("wrong", openai.AuthenticationError), ("secret", openai.NotFoundError)):
            with (
                openai.OpenAI(base_url=served.api, api_key=key, max_retries=0) as client,
                pytest.raises(error),
            ):
                client.chat.completions.create(model="gpt-4o", messages=CHAT)


def test_langchain_streams(served, plain):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        base_url=served.api, api_key="none", model="tiny", temperature=0, max_tokens=12, seed=1
    )
    expected = plain(CHAT, 12)
    assert chat.invoke(CHAT).content == expected
    assert "".join(chunk.content for chunk in chat.stream(CHAT)) == expected


@pytest.mark.deep
def test_the_llm_tool_answers(served, plain, tmp_path):
    models = f"- model_id: here\n  model_name: tiny\n  api_base: {served.api}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    prompt = CHAT[0]["content"]
    options = ["-o", "temperature", "0", "-o", "max_tokens", "12", "--no-log", "--key", "none"]
    ran = subprocess.run(
        [Path(sys.executable).parent / "llm", "-m", "here", *options, prompt],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout.rstrip("\n") == plain(CHAT, 12).rstrip("\n"), ran.stderr
