"""What ends an answer, and how one that was begun goes on, over HTTP."""

from __future__ import annotations

import pytest

from tests.support.served import SHIPPED, refused, serving
from trtla.llm.text import Tokenizer
from trtla.settings.messages import CONTINUED

PROMPT = "def f("
ASK = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0}
BEGUN = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "def f("}]


@pytest.fixture(scope="module")
def served():
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(SHIPPED)


def test_a_stop_token_is_counted_and_not_in_the_text(served, tokenizer):
    whole = served.complete(**ASK).json()
    ids = [tokenizer.encode(t, special=False) for t in whole["choices"][0]["logprobs"]["tokens"]]
    stop = ids[7][0]
    first = next(at for at, own in enumerate(ids) if own == (stop,))
    for drafter in ("lookahead", "none"):
        said = served.complete(**ASK, stop_token_ids=[stop], drafter=drafter).json()
        (choice,) = said["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == "".join(whole["choices"][0]["logprobs"]["tokens"][:first])
        assert said["usage"]["completion_tokens"] == first + 1 == len(choice["logprobs"]["tokens"])


def test_the_name_of_a_control_token_ends_an_answer(served, tokenizer):
    (token,) = tokenizer.encode("<|end|>", special=False)
    asked = {**ASK, "logit_bias": {str(token): 100}, "ignore_eos": True, "max_tokens": 3}
    assert served.complete(**asked).json()["usage"]["completion_tokens"] == 3
    said = served.complete(**asked, stop=["<|end|>"]).json()
    assert (said["usage"]["completion_tokens"], said["choices"][0]["text"]) == (1, "")
    assert said["choices"][0]["finish_reason"] == "stop"


def test_an_answer_that_was_begun_goes_on(served, tokenizer):
    refusal = refused(served.chat(messages=BEGUN), 400, "messages")
    assert "continue_final_message" in refusal
    ids = tokenizer.prompt_ids(BEGUN, rendering=CONTINUED)
    alone = served.complete(prompt=ids, max_tokens=6, temperature=0).json()["choices"][0]["text"]
    for more in ({}, {"add_generation_prompt": False}):
        how = {"max_tokens": 6, "temperature": 0, "continue_final_message": True, **more}
        said = served.chat(messages=BEGUN, **how).json()
        assert said["usage"]["prompt_tokens"] == len(ids)
        assert said["choices"][0]["message"]["content"] == alone
    closed = served.chat(messages=BEGUN, max_tokens=1, add_generation_prompt=False).json()
    assert closed["usage"]["prompt_tokens"] > len(ids)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"stop_token_ids": [10**6]}, "stop_token_ids", "outside the vocabulary"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "list of at most 1024 token ids"),
        ({"stop_token_ids": 7}, "stop_token_ids", "list of at most 1024 token ids"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "exclude each other",
        ),
        ({"continue_final_message": True}, "messages", "the last message is of user"),
    ],
)
def test_what_makes_no_sense_is_refused(served, body, param, said):
    answer = served.chat(messages=BEGUN[:1], max_tokens=1, **body)
    assert said in refused(answer, 400, param)
