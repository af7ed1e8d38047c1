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
from trtla.llm.prompt import PromptRequest
from trtla.llm.text import Tokenizer
from trtla.measuring.encoding import Encoder
from trtla.settings.messages import check_messages, joined

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
