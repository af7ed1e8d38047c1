"""A chat with a model that answers in harmony shows its thoughts, and forgets them."""

from __future__ import annotations

from tests.extras.chat.conftest import RecordedSession, lines
from tests.support.chat_templates import harmony_folder
from tests.support.served import SHIPPED
from trtla import LLM
from trtla.extras.chat.settings import ChatSettings, changed


def test_thoughts_are_shown_between_marks_and_are_not_sent_back(tmp_path):
    with LLM(harmony_folder(SHIPPED, tmp_path), max_batch_size=1) as llm:
        find = llm.tokenizer.token_id
        likely = {find("<|channel|>"): 60.0, find("<|message|>"): 25.0, find("<|end|>"): 11.0}
        how = {"max_output_len": 60, "logit_bias": likely, "temperature": 0.9, "seed": 0}
        session = RecordedSession(llm, changed(ChatSettings(), how))
        shown = lines(session, "hello", "again")
    first, second = shown.answers
    assert "".join(shown.texts) == first.text + second.text
    assert not set("".join(shown.texts)) & set(map(chr, range(0xDC00, 0xE000)))
    assert shown.refusals == []
