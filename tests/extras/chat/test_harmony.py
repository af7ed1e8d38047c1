"""A chat with a model that answers in harmony shows its thoughts, and forgets them."""

from __future__ import annotations

from tests.extras.chat.conftest import RecordedSession, lines
from tests.support.chat_templates import harmony_folder
from tests.support.served import SHIPPED
from trtla import LLM
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.settings.grammar import Grammar

_MESSAGES = (
    '<|channel|> "analysis" <|message|> "Well." <|end|> <|start|> "assistant" '
    '<|channel|> "final" <|message|> "Yes."'
)


def test_thoughts_are_shown_between_marks_and_are_not_sent_back(tmp_path):
    with LLM(harmony_folder(SHIPPED, tmp_path), max_batch_size=1) as llm:
        rules = _MESSAGES
        for name in ("channel", "message", "end", "start"):
            rules = rules.replace(f"<|{name}|>", f"<[{llm.tokenizer.token_id(f'<|{name}|>')}]>")
        how = {"max_output_len": 60, "grammar": Grammar.of({"lark": f"start: {rules}"})}
        session = RecordedSession(llm, changed(ChatSettings(), how))
        shown = lines(session, "hello", "again")
        hello, again = ({"role": "user", "content": text} for text in ("hello", "again"))
        answer = {"role": "assistant", "content": "Yes."}
        prompt = llm.tokenizer.prompt_ids([hello, answer, again])
    text = "<think>\nWell.\n</think>\n\nYes."
    assert "".join(shown.texts) == text * 2
    assert [turn.answer for turn in session.turns] == [text] * 2
    assert shown.answers[1].prompt_tokens == len(prompt)
    assert shown.refusals == []
