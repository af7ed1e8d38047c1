"""Chat templates get contents as they take them, no question is lost, and answers go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support.chat_templates import CHATML, LLAMA_3, tokenizer_folder, with_template
from tests.support.tokenizers import byte_level
from trtla import LLM, SamplingParams, UsageError
from trtla.llm.chat_renderer import ChatRenderer
from trtla.llm.templates import ChatTemplate
from trtla.llm.text import Tokenizer
from trtla.settings.messages import ANSWER, CONTINUED, Rendering

HEAD, END = "<|im_start|>{{ m.role }}\n", "<|im_end|>\n{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LOOP = "{% for m in messages %}"
EACH = "{% for part in {} %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"


def each(name: str) -> str:
    return EACH.replace("{}", name)


WALKING = {
    "loop": LOOP + HEAD + each("m['content']") + END + ASKED,
    "alias": LOOP + "{% set c = m.content %}" + HEAD + each("c") + END + ASKED,
    "list": "{% set ns = messages | list %}{% for m in ns %}" + HEAD + each("m.content") + END,
    "macro": "{% macro shown(c) %}" + each("c") + "{% endmacro %}" + LOOP + HEAD
    + "{{ shown(m.content) }}" + END + ASKED,
    "first part": LOOP + HEAD + "{{ m.content[0]['text'] }}" + END,
    "joined": LOOP + HEAD + "{{ m.content | map(attribute='text') | join }}" + END,
    "raising": LOOP + "{% if m.content is string %}{{ raise_exception('parts!') }}{% endif %}"
    + HEAD + each("m.content") + END,
    "user alone": LOOP + HEAD + "{% if m.role == 'user' %}" + each("m.content")
    + "{% else %}{{ m.content + '' }}{% endif %}" + END,
}  # fmt: skip
BOTH = LOOP + HEAD + "{% if m.content is string %}{{ m.content }}{% else %}" + each("m.content")
BOTH += "{% endif %}" + END
WRITING = {
    "chatml": CHATML,
    "llama 3": LLAMA_3,
    "as it is": LOOP + "{{ m.content }}{% endfor %}",
    "shouting": LOOP + "{{ m.content | upper }}{% endfor %}",
    "quoting": LOOP + "{{ m.content | tojson }}{% endfor %}",
    "without markers": LOOP + "{{ m.content | replace('/no_think', '') }}{% endfor %}",
}
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Is \"it\" 'one' \n or two? /no_think"},
]


class Conversations:
    """A template's conversations, as a tokenizer renders them."""

    def __init__(self, template):
        found = ChatTemplate(template, {"bos_token": "<s>"})
        self.renderer = ChatRenderer(lambda: found, Path("model"), {})

    def text(self, messages, rendering):
        return self.renderer.text(self.renderer.adapted(messages, rendering), rendering)


@pytest.mark.parametrize("name", WALKING)
def test_a_template_that_walks_parts_gets_parts(name) -> None:
    text = Conversations(WALKING[name]).text(TALK, ANSWER)
    for one in TALK:
        assert f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>" in text


@pytest.mark.parametrize("name", WRITING)
def test_a_template_that_writes_texts_gets_texts(name) -> None:
    template = ChatTemplate(WRITING[name], {"bos_token": "<s>"})
    assert Conversations(WRITING[name]).text(TALK, ANSWER) == template.render(TALK)


def test_several_parts_stay_parts_where_the_template_takes_them_and_are_lines_elsewhere() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    asked = [{"role": "user", "content": parts}]
    assert "onetwo" in Conversations(BOTH).text(asked, ANSWER)
    assert "onetwo" in Conversations(WALKING["loop"]).text(asked, ANSWER)
    assert "one\ntwo" in Conversations(CHATML).text(asked, ANSWER)
    assert "one\ntwo" in Conversations(WRITING["as it is"]).text(asked, ANSWER)


LOSING = {
    "nothing": "{% for m in messages %}" + HEAD + END,
    "a length": LOOP + "{{ m.content | length }}{% endfor %}",
    "its beginning": LOOP + "{{ m.content[0] }}{% endfor %}",
    "the first message": LOOP + "{% if loop.first %}{{ m.content }}{% endif %}{% endfor %}",
    "no users": LOOP + "{% if m.role != 'user' %}{{ m.content }}{% endif %}{% endfor %}",
    "the newest": "{{ messages[-1].content }}",
}


@pytest.mark.parametrize("name", LOSING)
def test_a_question_that_is_not_in_the_prompt_is_refused(name) -> None:
    for question in ("Where is the cat that sat on the mat?", "a"):
        talk = [*TALK[1:3], {"role": "user", "content": question}]
        with pytest.raises(UsageError, match="leaves out user messages") as refusal:
            Conversations(LOSING[name]).text(talk, ANSWER)
        assert "--no-chat" in refusal.value.hint
    blank = [{"role": "user", "content": " \n"}]
    if name == "nothing":
        assert Conversations(LOSING[name]).text(blank, ANSWER)


def test_a_question_that_only_another_message_has_is_not_there() -> None:
    said = "Be a friend to every cat."
    talk = [{"role": "system", "content": said}, {"role": "user", "content": said}]
    with pytest.raises(UsageError, match="leaves out user messages"):
        Conversations("{{ messages[0].content }}").text(talk, ANSWER)
    assert Conversations(CHATML).text(talk, ANSWER).count(said) == 2


def test_a_template_that_writes_one_question_only_takes_one() -> None:
    template = Conversations(LOSING["the first message"])
    assert template.text(TALK[1:2], ANSWER) == "What is it?"
    with pytest.raises(UsageError, match="leaves out user messages"):
        template.text(TALK[1:], ANSWER)


BEGUN = [*TALK[:2], {"role": "assistant", "content": "  The cat sat \n"}]


@pytest.mark.parametrize("template", [CHATML, LLAMA_3, WALKING["loop"], BOTH])
def test_an_answer_that_was_begun_goes_on_as_in_transformers(template) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>")
    for said in ("The cat sat", "  The cat sat \n", "The <|im_end|>\n cat", "x"):
        begun = [*TALK[:2], {"role": "assistant", "content": said}]
        shown = begun
        if template == WALKING["loop"]:
            shown = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in begun]
        expected = theirs.apply_chat_template(
            shown, chat_template=template, tokenize=False, continue_final_message=True
        )
        assert Conversations(template).text(begun, CONTINUED) == expected


@pytest.mark.parametrize("said", ["", " \n"])
def test_an_answer_that_was_begun_with_nothing_begins_as_any(said) -> None:
    for template in (LLAMA_3, LOOP + HEAD + "{{ m.content | trim }}" + END + ASKED):
        talk = Conversations(template)
        begun = [*TALK[:2], {"role": "assistant", "content": said}]
        assert talk.text(begun, CONTINUED) == talk.text(TALK[:2], ANSWER)


def test_a_template_that_writes_the_last_text_twice_cannot_go_on() -> None:
    twice = Conversations(CHATML + "{{ messages[-1].content }}")
    with pytest.raises(UsageError, match="can then not be continued"):
        twice.text(BEGUN, CONTINUED)


def test_a_last_text_that_the_template_changes_cannot_go_on() -> None:
    for template in (
        WRITING["shouting"],
        LOOP + "{{ m.content | replace('sat', '') }}{% endfor %}",
    ):
        with pytest.raises(UsageError, match="can then not be continued"):
            Conversations(template).text(BEGUN, CONTINUED)


def test_what_is_last_has_to_fit_what_is_asked() -> None:
    with pytest.raises(UsageError, match="another answer would begin") as refusal:
        Conversations(CHATML).text(BEGUN, ANSWER)
    assert "continue_final_message" in refusal.value.hint
    with pytest.raises(UsageError, match="the last message is of user"):
        Conversations(CHATML).text(TALK, CONTINUED)
    closed = Conversations(CHATML).text(BEGUN, Rendering(False))
    assert closed.endswith("The cat sat \n<|im_end|>\n")
    with pytest.raises(UsageError, match="exclude each other"):
        Rendering.of(True, True)


def test_control_tokens_of_a_text_that_goes_on_are_its_letters(tmp_path) -> None:
    tokenizer = Tokenizer(tokenizer_folder(tmp_path, CHATML))
    begun = [*TALK[:2], {"role": "assistant", "content": "a<|im_end|>b"}]
    ids = tokenizer.prompt_ids(begun, rendering=CONTINUED)
    start, end = tokenizer.encode("<|im_start|><|im_end|>", special=False)
    assert (ids.count(start), ids.count(end)) == (3, 2)
    assert tokenizer.decode(ids).endswith("assistant\na<|im_end|>b")


def test_a_model_goes_on_with_an_answer(tiny_llama, tmp_path) -> None:
    with LLM(with_template(tiny_llama, tmp_path / "m", CHATML), dtype="float32") as llm:
        how = SamplingParams(8)
        (one,) = llm.chat(BEGUN, how, continue_final_message=True)
        assert one.input_text.endswith("<|im_start|>assistant\n  The cat sat \n")
        assert one.token_ids == llm.generate([one.input_ids], how)[0].token_ids
        with pytest.raises(UsageError, match="prompt 0: the last message is the assistant's"):
            llm.chat(BEGUN, how)
        with pytest.raises(UsageError, match="continue_final_message is for conversations"):
            llm.generate("a", how, continue_final_message=True)
        with pytest.raises(UsageError, match="continue_final_message is 1"):
            llm.chat(BEGUN, how, continue_final_message=1)
