"""Messages and chat templates in Python: the same ids as transformers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import (
    CHATML,
    LLAMA_3,
    NO_SYSTEM,
    UNREADABLE,
    expected_ids,
    tokenizer_folder,
    with_template,
)
from trtla import LLM, SamplingParams, UsageError
from trtla.bench.opened import Encoder, plain_answers
from trtla.data.prompt_sets import Question
from trtla.llm.prompt import PromptRequest
from trtla.llm.text import Tokenizer
from trtla.settings.messages import Asking, check_messages, joined

USER = {"role": "user", "content": "Write a loop. "}
ANSWERED = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "for x in y:"},
    {"role": "user", "content": "日本 and é"},
]
FEW = SamplingParams(max_output_len=6)


@pytest.mark.parametrize("template", [CHATML, LLAMA_3])
@pytest.mark.parametrize("messages", [[USER], ANSWERED])
def test_ids_are_those_of_transformers(
    template: str, messages: list[dict[str, str]], tmp_path: Path
) -> None:
    tokenizer = Tokenizer(tokenizer_folder(tmp_path, template))
    ids = tokenizer.prompt_ids(messages)
    assert ids == expected_ids(tmp_path, messages)
    begin = tokenizer.inner.bos_token_id
    assert tokenizer.encode("text")[0] == begin  # a text begins with it
    begins = ids.count(begin)
    assert begins == (1 if template == LLAMA_3 else len(messages) + 1)
    assert ids[:2].count(begin) == 1


def test_the_shipped_model_takes_messages(llm: LLM, tiny_llama: Path) -> None:
    for messages in ([USER], ANSWERED):
        (done,) = llm.generate(messages, FEW)
        assert done.input_ids == expected_ids(tiny_llama, messages)
        assert done.input_text is not None
        assert done.input_text.endswith("<|end|>\n<|assistant|>\n")
        (same,) = llm.generate([done.input_ids], FEW)
        assert (done.output_ids, done.text) == (same.output_ids, same.text)


def test_a_list_of_messages_is_one_conversation_and_a_list_of_lists_several(llm: LLM) -> None:
    one = llm.generate([USER], FEW)
    assert len(one) == 1
    several = llm.generate([[USER], "Write a loop. ", ANSWERED], FEW)
    assert [done.input_ids for done in several] == [
        one[0].input_ids,
        llm.encode("Write a loop. "),
        llm.encode(ANSWERED),
    ]
    assert "".join(chunk.text or "" for chunk in llm.stream([USER], FEW)) == one[0].text
    assert llm.request(PromptRequest("it", [USER], FEW)).input_ids == one[0].input_ids
    assert llm.beam_search([USER], max_output_len=2)


def test_parts_of_a_content_stay_parts_and_are_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    (message,) = check_messages([{"role": "user", "content": parts}], "it")
    assert message == {"role": "user", "content": parts}
    assert joined(parts) == "one\ntwo"
    (empty,) = check_messages([{"role": "user", "content": []}], "it")
    assert empty["content"] == ""


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([{"role": "usr", "content": "a"}], r"prompt 0: messages\[0\] has the role 'usr'"),
        ([USER, {"content": "a"}], r"messages\[1\] has no role"),
        ([{"role": "function", "content": "a"}], "the role 'function'"),
        ([{"role": ["user"], "content": "a"}], "the role"),
        ([{"role": "user"}], r"messages\[0\] \(user\) has no content"),
        ([{"role": "user", "content": 3}], "content 3"),
        ([{"role": "user", "content": b"a"}], "content b'a'"),
        ([{"role": "user", "content": ["a"]}], "part 'a'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}],
            "a part with the unknown key 'cache_control'",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "which has no text"),
        ([{"role": "user", "content": "a", "author": "b"}], "unknown key 'author'"),
        ([{"role": "user", "content": "a", "name": 3}], "the name 3"),
        ([{"role": "user", "content": None}], "content None"),
        ([{"role": "user", "content": "\ud800"}], "not UTF-8"),
        ([[USER, "a"]], r"messages\[1\] is 'a', not a message"),
        (USER, "prompt 0 is {'role': 'user'"),
        ([USER, "a"], "prompt 0 is {'role': 'user'"),
    ],
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        llm.generate(messages, FEW)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_mistyped_role_is_corrected() -> None:
    with pytest.raises(UsageError) as caught:
        check_messages([{"role": "assistent", "content": "a"}], "it")
    assert caught.value.hint == "did you mean assistant? use system, user, assistant, tool"


@pytest.mark.parametrize(
    ("template", "part"),
    [(NO_SYSTEM, "fails: System role not supported\nhint"), (UNREADABLE, "fails: ")],
)
def test_a_template_that_fails_says_why(
    template: str, part: str, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = with_template(tiny_llama, tmp_path / "model", template)
    with pytest.raises(UsageError, match=part) as caught:
        Tokenizer(folder).prompt_ids(ANSWERED)
    assert "\n" not in caught.value.message
    assert "--no-chat" in str(caught.value.hint)


def test_a_model_without_a_template_takes_no_messages(tiny_llama: Path, tmp_path: Path) -> None:
    folder = with_template(tiny_llama, tmp_path / "model", "")
    with LLM(folder, dtype="float32") as opened, pytest.raises(UsageError) as caught:
        opened.generate(["text", [USER]], FEW, names=["first", "second"])
    assert caught.value.message == f"second: the tokenizer in {folder} has no chat template"
    assert caught.value.hint


@pytest.mark.parametrize("chat", [None, False])
def test_a_second_turn_holds_the_first_answer(
    llm: LLM, tiny_llama: Path, chat: bool | None
) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    sampling = SamplingParams(max_output_len=8, temperature=0.8, seed=5)
    encoder = Encoder(tokenizer, Asking(chat))
    answer = plain_answers(llm, tokenizer, sampling, llm.end_ids)
    questions = [Question(("a",)), Question(("class A:", "def b("), is_chat=True)]
    alone, first, second = encoder.questions(questions, answer)
    assert alone == tokenizer.encode("a")
    place = SamplingParams(max_output_len=8, temperature=0.8, seed=6)
    (done,) = llm.generate([first], place)
    if chat is False:
        assert first == tokenizer.encode("class A:")
        assert second == tokenizer.encode(f"class A:{done.text}\ndef b(")
        return
    asked = [{"role": "user", "content": "class A:"}]
    assert first == expected_ids(tiny_llama, asked)
    asked += [{"role": "assistant", "content": str(done.text)}]
    asked += [{"role": "user", "content": "def b("}]
    assert second == expected_ids(tiny_llama, asked)


def test_an_answer_ends_where_its_end_token_is(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode("import ")
    (done,) = llm.generate([prompt], FEW)
    ends = frozenset({done.output_ids[3]})
    (text,) = plain_answers(llm, tokenizer, FEW, ends)([prompt], [0])
    stop = done.output_ids.index(done.output_ids[3])
    assert text == tokenizer.decode(done.output_ids[:stop])


@pytest.mark.parametrize("room", [400, 40, 16])
def test_a_long_conversation_loses_its_beginning_and_keeps_its_template(
    tiny_llama: Path, room: int
) -> None:
    tokenizer = Tokenizer(tiny_llama)
    words = " ".join(f"word{i}" for i in range(100))
    messages = [{"role": "user", "content": words}, {"role": "assistant", "content": "yes"}]
    messages += [{"role": "user", "content": "é the end"}]
    encoder = Encoder(tokenizer, room=room)
    ids = encoder.ids(messages)
    assert len(ids) <= room
    text = tokenizer.inner.decode(ids)
    assert text.startswith("<|user|>\n")
    assert text.endswith(" end<|end|>\n<|assistant|>\n")
    assert encoder.cut == (len(tokenizer.prompt_ids(messages)) > room)
    if room == 40:
        assert "word99<|end|>" in text
        assert "word1 " not in text
    with pytest.raises(UsageError, match="without any text"):
        Encoder(tokenizer, room=2).ids(messages)
