"""Log probabilities through the API: those of the model, whatever drafts, streamed or not."""

from __future__ import annotations

import math

import openai
import pytest

PROMPT = "def read_file(path"
HOW = {"model": "tiny", "max_tokens": 12, "temperature": 0.7, "seed": 4}


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.api, api_key="none", max_retries=0) as one:
        yield one


def test_a_completion_lists_its_tokens(served, client):
    (choice,) = client.completions.create(prompt=PROMPT, logprobs=3, **HOW).choices
    listed = choice.logprobs
    assert "".join(listed.tokens) == choice.text
    assert listed.text_offset == [
        len("".join(listed.tokens[:i])) for i in range(len(listed.tokens))
    ]
    for token, own, tops in zip(
        listed.tokens, listed.token_logprobs, listed.top_logprobs, strict=True
    ):
        assert len(tops) == 3
        assert list(tops.values()) == sorted(tops.values(), reverse=True)
        assert own <= max(tops.values())
        assert tops.get(token, own) == own
    llm = served.service.model.llm
    ids = llm.tokenizer.encode(choice.text, special=False)
    if len(ids) == 12:  # else the text has another split
        wanted = llm.log_probs(PROMPT, ids)
        assert listed.token_logprobs == pytest.approx(wanted, abs=1e-4)


def test_a_chat_lists_tokens_with_bytes_and_rivals(client):
    messages = [{"role": "user", "content": "import"}]
    (choice,) = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=2, **HOW
    ).choices
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == choice.message.content
    assert all(len(one.top_logprobs) == 2 and math.isfinite(one.logprob) for one in content)
    (bare,) = client.chat.completions.create(messages=messages, logprobs=True, **HOW).choices
    assert [one.logprob for one in bare.logprobs.content] == pytest.approx(
        [one.logprob for one in content], abs=1e-6
    )
    assert not bare.logprobs.content[0].top_logprobs


def test_a_stream_lists_every_token_once(client):
    (whole,) = client.completions.create(prompt=PROMPT, logprobs=0, **HOW).choices
    chunks = client.completions.create(prompt=PROMPT, logprobs=0, stream=True, **HOW)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [t for part in parts for t in part.tokens] == whole.logprobs.tokens
    assert [o for part in parts for o in part.text_offset] == whole.logprobs.text_offset


def test_top_logprobs_needs_logprobs(client):
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.chat.completions.create(
            messages=[{"role": "user", "content": "a"}], top_logprobs=2, **HOW
        )
