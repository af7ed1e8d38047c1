"""A session on the shipped model: turns share the cache, settings decide, stopping keeps a part."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.conftest import lines
from tests.examples import examples
from trtla import LLM, SamplingParams
from trtla.chat.commands import TABLE
from trtla.chat.decode import rejected_tail
from trtla.chat.events import (
    Answered,
    Busy,
    ClearScreen,
    Compared,
    Leave,
    Noted,
    Refused,
    Said,
    Streamed,
)
from trtla.chat.session import Session
from trtla.chat.settings import ChatSettings, changed
from trtla.errors import UsageError
from trtla.runtime.draft import Draft

ASK = "Return the number of items."


def answers(events):
    return [event.answer for event in events if isinstance(event, Answered)]


def said(events):
    return "\n".join(event.text for event in events if isinstance(event, Said))


def refusal(session: Session, line: str) -> str:
    (event,) = session.handle(line)
    assert isinstance(event, Refused)
    assert "\n" not in event.text
    return event.text


def test_the_first_answer_is_what_the_template_alone_gives(session, llm):
    (answer,) = answers(lines(session, ASK))
    prompt = llm.tokenizer.chat_text([{"role": "user", "content": ASK}])
    (expected,) = llm.generate(prompt, SamplingParams(max_output_len=24))
    assert answer.ids == expected.output_ids
    assert answer.text == expected.text


def test_streamed_text_is_the_answer(session):
    events = lines(session, ASK)
    text = "".join(e.step.chunk.text for e in events if isinstance(e, Streamed))
    (answer,) = answers(events)
    assert text == answer.text == session.turns[0].answer


def test_a_second_turn_is_read_from_the_cache_where_it_repeats(session):
    lines(session, "/length 80", ASK)
    before = session.context
    (answer,) = answers(lines(session, "And the sum?"))
    # Whole blocks of 32 tokens; the last token's keys are never there.
    assert answer.metrics.reused_tokens >= (before - 1) // 32 * 32 - 32 > 0
    assert answer.metrics.prompt_tokens > before


def test_plain_text_goes_on_as_a_transcript(session, llm):
    lines(session, "/chat off", "def read(")
    (first,) = [turn.answer_ids for turn in session.turns]
    (answer,) = answers(lines(session, "def write("))
    ids = (*llm.tokenizer.encode("def read("), *first, *llm.tokenizer.encode("\ndef write("))
    (expected,) = llm.generate(ids, SamplingParams(max_output_len=24))
    assert answer.ids == expected.output_ids


@pytest.mark.parametrize(
    "setting",
    ["/speculative off", "/drafter ngram", "/drafter prompt-lookup", "/lookahead 3,3,3",
     "/lookahead auto", "/lookahead off", "/debug on"],
)  # fmt: skip
def test_no_setting_of_drafts_changes_the_answer(session, llm, setting):
    (plain,) = answers(lines(Session(llm, session.settings), ASK))
    (other,) = answers(lines(session, setting, ASK))
    assert other.ids == plain.ids


def test_target_and_ngram_decode_again_and_compare(session):
    events = lines(session, "/target on", "/ngram on", ASK)
    plain, ngrams = said(events).splitlines()
    assert plain.startswith("plain decoding: ")
    assert "1.00 tokens per step, the same text" in plain
    assert ngrams.startswith("n-grams: ")
    assert "the same text" in ngrams
    assert len(session.turns) == 1
    assert session.total.answers == 1


def test_compare_answers_the_last_message_twice(session):
    lines(session, ASK)
    events = lines(session, "/compare lookahead 7,7,7 | drafter prompt-lookup; gamma 8")
    (found,) = [event.comparison for event in events if isinstance(event, Compared)]
    assert [side.name for side in found.sides] == [
        "lookahead 7,7,7", "drafter prompt-lookup; gamma 8",
    ]  # fmt: skip
    assert found.texts[0].ids == found.texts[1].ids == answers(lines(session, "/reset", ASK))[0].ids
    assert "the texts are equal" in found.verdict
    assert found.rows()[0] == ("tokens", *[str(len(found.texts[0].ids))] * 2)
    assert any(isinstance(event, Busy) for event in events)


def test_compare_says_where_texts_differ(session):
    lines(session, ASK)
    events = lines(session, "/compare processor greedy | processor multinomial 2; seed 5")
    (found,) = [event.comparison for event in events if isinstance(event, Compared)]
    assert "the texts differ from token " in found.verdict


def test_compare_refuses_and_changes_nothing(session):
    before = session.settings
    assert "say something first" in refusal(session, "/compare gamma 3 | gamma 4")
    lines(session, ASK)
    assert "two settings with | between" in refusal(session, "/compare gamma 3")
    assert "changes no setting" in refusal(session, "/compare stats | gamma 4")
    assert "more than the default triple" in refusal(session, "/compare lookahead 9,9,9 | gamma 4")
    assert session.settings == before


def test_stopping_keeps_what_was_written(session):
    events = []
    for event in session.handle(ASK):
        events.append(event)
        if isinstance(event, Streamed):
            session.stop()
    (answer,) = answers(events)
    assert answer.finish_reason == "cancelled"
    assert 0 < len(answer.ids) < 24
    assert session.turns[0].answer_ids == answer.ids
    assert isinstance(events[-1], Noted)
    assert "stopped" in events[-1].text
    (following,) = answers(lines(session, "Go on."))
    assert following.finish_reason != "cancelled"


def test_debug_shows_what_was_rejected(session):
    lines(session, "/length 40", "/debug on")
    steps = [e.step for e in lines(session, ASK) if isinstance(e, Streamed)]
    assert any(step.rejected for step in steps)
    assert all(step.chunk.accepted < len(step.chunk.token_ids) for step in steps[:-1])


def test_a_rejected_tail_is_of_the_branch_that_was_accepted():
    # Two branches below the input: 5 6 7 and 8 9; the window's node 1 is no candidate.
    draft = Draft((4, 5, 6, 7, 8, 9), (0, 0, 2, 3, 0, 5), first_candidate=2)
    assert rejected_tail(draft, (5,)) == (6, 7)
    assert rejected_tail(draft, (8,)) == (9,)
    assert rejected_tail(draft, (8, 9)) == ()
    assert rejected_tail(draft, ()) == (5, 6, 7)
    assert rejected_tail(Draft(), ()) == ()


def test_old_turns_make_room(session):
    lines(session, "/length 64")
    long = "word " * 300
    events = lines(session, *[long] * 4)
    dropped = [e.text for e in events if isinstance(e, Noted) and "context is full" in e.text]
    assert dropped
    assert all("\n" not in text for text in dropped)
    assert len(session.turns) < 4


def test_a_message_that_never_fits_is_refused_and_nothing_forgotten(session):
    lines(session, ASK)
    assert "max_input_len" in refusal(session, "word " * 3000)
    assert len(session.turns) == 1


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/lookahead 9,9,9", "more than the default triple 7,7,7"),
        ("/length 5000", "above max_seq_len 2048"),
        ("/gamma 100", "above"),
        ("/drafter draft:nowhere", "start again with --draft-model nowhere"),
        ("/egag on", "egag needs a draft model"),
        ("/load nothing.json", "does not exist"),
        ("/save", "no file is named"),
        ("/stats now", "takes no value"),
        ("/cache maybe", "neither on nor off"),
    ],
)
def test_what_the_model_cannot_do_is_refused_at_once(session, line, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines(session, "/drafter ngram" if "gamma" in line else "/drafter lookahead")
    before = session.settings
    assert part in refusal(session, line)
    assert session.settings == before


def test_auto_with_another_drafter_is_refused(session):
    lines(session, "/lookahead auto")
    assert "auto" in refusal(session, "/drafter ngram")


def test_cache_says_that_it_is_always_on(session):
    (event,) = session.handle("/cache off")
    assert event == Noted("/cache is always on: every executor of trtla keeps keys and values")


def test_a_setting_alone_shows_its_value(session):
    assert lines(session, "/gamma", "/lookahead") == [
        Noted("/gamma is 4"), Noted("/lookahead is 7,7,7"),
    ]  # fmt: skip


def test_an_unused_triple_is_said_to_be(session):
    (*_, event) = lines(session, "/drafter ngram", "/lookahead 3,3,3")
    assert event == Noted("/lookahead is now 3,3,3; unused, ngram drafts")


def test_leaving_clearing_resetting(session):
    assert lines(session, "/quit", "/clear") == [Leave(), ClearScreen()]
    lines(session, ASK, "/reset")
    assert session.turns == []


def test_two_slashes_begin_a_message(session):
    lines(session, "//help me")
    assert session.turns[0].message == "/help me"


def test_blank_lines_are_nothing(session):
    assert lines(session, "", "   ") == []


def test_stats_add_up(session):
    made = answers(lines(session, ASK, "And the sum?"))
    text = said(lines(session, "/stats"))
    assert f"2 answers, {sum(len(a.ids) for a in made)} tokens" in text
    assert f"context: {session.context} of 2048 tokens, 2 turns" in text


def test_a_saved_chat_goes_on_as_if_nothing_had_been(session, llm, tmp_path):
    file = tmp_path / "chat.json"
    lines(session, "/processor nucleus 0.8 0.9", "/seed 3", "/drafter ngram,lookahead", ASK)
    lines(session, f"/save {file}")
    (expected,) = answers(lines(session, "And the sum?"))
    other = Session(llm, ChatSettings())
    (event,) = other.handle(f"/load {file}")
    assert isinstance(event, Noted)
    assert other.settings == dataclasses.replace(session.settings)
    assert other.turns == session.turns[:1]
    (answer,) = answers(lines(other, "And the sum?"))
    assert answer.ids == expected.ids
    lines(other, f"/save {file}")  # its own kind of file may be written again


def test_a_model_without_a_tokenizer_cannot_chat(llm, monkeypatch):
    monkeypatch.setattr(llm, "tokenizer", None)
    with pytest.raises(UsageError, match="no tokenizer files"):
        Session(llm, ChatSettings())


def test_without_a_template_messages_are_plain_text(llm, monkeypatch):
    monkeypatch.setitem(llm.tokenizer.__dict__, "has_chat_template", False)
    session = Session(llm, ChatSettings())
    assert not session.settings.chat
    assert "no chat template" in refusal(session, "/chat on")


def test_a_template_that_fails_is_one_line(session, llm, monkeypatch):
    broken = "{{ raise_exception('no such\\nrole') }}"
    monkeypatch.setattr(llm.tokenizer.inner, "chat_template", broken)
    text = refusal(session, ASK)
    assert "fails: no such" in text
    assert "/chat off" in text
    assert answers(lines(session, "/chat off", ASK))


def test_a_message_of_broken_bytes_is_answered(session):
    (answer,) = answers(lines(session, "/length 4", "abc \udce4"))
    assert answer.ids


_COMMANDS = st.tuples(
    st.sampled_from([c.name for c in TABLE] + ["x", ""]),
    st.text(st.characters(exclude_characters="/~\\"), max_size=12)
    | st.sampled_from(["on", "off", "3", "0.5", "7,7,7", "auto", "greedy", "topk 0.5 3", "ngram"]),
).map(lambda pair: f"/{pair[0]} {pair[1]}")


@examples(60)
@given(given_lines=st.lists(_COMMANDS, max_size=6))
def test_random_commands_never_raise(llm: LLM, tmp_path_factory, given_lines):
    session = Session(llm, changed(ChatSettings(), {"sampling.max_output_len": 4}))
    session.turns.clear()
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("files"))
    try:
        events = lines(session, *given_lines)
    finally:
        os.chdir(before)
    assert all("\n" not in event.text for event in events if isinstance(event, (Refused, Noted)))
