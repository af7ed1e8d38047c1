"""A session on the shipped model: turns share the cache, settings decide, stopping keeps a part."""

from __future__ import annotations

import os

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.chat.conftest import RecordedSession, lines
from tests.support.examples import examples
from trtla import LLM, SamplingParams
from trtla.extras.chat.command import chat
from trtla.extras.chat.conversation import Turn
from trtla.extras.chat.model import ChatModel, rejected_tail
from trtla.extras.chat.settings import ChatSettings, changed
from trtla.extras.chat.slash_commands import SlashCommands
from trtla.llm.templates import ChatTemplate
from trtla.runtime.draft import Draft

ASK = "Return the number of items."


def answers(session, *typed):
    return lines(session, *typed).answers


def note(session, *typed):
    return lines(session, *typed).notes[-1]


def refusal(session, line: str) -> str:
    (text,) = lines(session, line).refusals
    assert "\n" not in text
    return text


def test_the_first_answer_is_what_the_template_alone_gives(session, llm):
    shown = lines(session, ASK)
    prompt = llm.tokenizer.chat_text([{"role": "user", "content": ASK}])
    (expected,) = llm.generate(prompt, SamplingParams(max_output_len=24))
    (answer,) = shown.answers
    assert tuple(answer.ids) == expected.output_ids
    assert "".join(shown.texts) == answer.text == expected.text
    assert session.turns == [Turn(ASK, expected.text)]


def test_a_second_turn_is_read_from_the_cache_where_it_repeats(session):
    (first,) = answers(session, "/length 80", ASK)
    before = session.context
    (answer,) = answers(session, "And the sum?")
    # Whole blocks of 32 tokens; the last token's keys are never there.
    assert answer.reused_tokens >= (before - 1) // 32 * 32 - 32 > 0
    assert answer.prompt_tokens > before
    (text,) = lines(session, "/stats").out
    assert f"2 answers, {len(first.ids) + len(answer.ids)} tokens" in text
    assert f"{answer.reused_tokens} of them still in the K/V cache" in text
    assert f"context: {session.context} of 2048 tokens, 2 turns" in text


def test_plain_text_goes_on_as_a_transcript(session, llm):
    (first,) = answers(session, "/chat off", "def read(")
    (answer,) = answers(session, "def write(")
    prompt = f"def read({first.text}\ndef write("
    (expected,) = llm.generate(prompt, SamplingParams(max_output_len=24))
    assert tuple(answer.ids) == expected.output_ids


@pytest.mark.parametrize(
    "setting",
    ["/speculative off", "/drafter ngram", "/drafter ngram,lookahead", "/drafter prompt-lookup",
     "/lookahead 3,3,3", "/lookahead auto", "/debug on"],
)  # fmt: skip
def test_no_setting_of_drafts_changes_the_answer(session, llm, setting):
    (plain,) = lines(RecordedSession(llm, session.settings), ASK).answers
    (other,) = answers(session, setting, ASK)
    assert other.ids == plain.ids


def test_target_and_ngram_decode_again_and_compare(session):
    plain, ngrams = lines(session, "/target on", "/ngram on", ASK).out
    assert plain.startswith("plain decoding: ")
    assert "1.00 tokens per step, the same text" in plain
    assert ngrams.startswith("n-grams: ")
    assert "the same text" in ngrams
    assert len(session.turns) == len(session.replies) == 1


def test_a_grammar_that_cannot_be_used_is_refused_where_it_is_given(session):
    pytest.importorskip("llguidance")
    before = session.settings
    for line in ("/regex (", '/json_schema {"type": "nothing"}', "/grammar start: nothing"):
        assert refusal(session, line).startswith(f"{line}: the ")
        assert session.settings == before
    assert note(session, "/regex [a-z]{3}") == "/regex is now [a-z]{3}"
    (answer,) = answers(session, ASK)
    assert len(answer.text) == 3


def test_stopping_keeps_what_was_written(session, monkeypatch):
    monkeypatch.setattr(session.recorder, "text", lambda pieces: setattr(session, "stops", 1))
    shown = lines(session, ASK)
    (answer,) = shown.answers
    assert answer.finish_reason == "cancelled"
    assert 0 < len(answer.ids) < 24
    assert session.turns == [Turn(ASK, answer.text)]
    assert "stopped" in shown.notes[-1]
    monkeypatch.undo()
    (following,) = answers(session, "Go on.")
    assert following.finish_reason != "cancelled"


def test_debug_shows_what_was_rejected(session):
    shown = lines(session, "/length 40", "/lookahead 7,7,7", "/debug on", ASK)
    assert any(rejected for _, _, (_, rejected, _) in shown.steps)
    assert all(own for _, _, (_, _, own) in shown.steps[:-1])
    assert "".join(accepted + own for _, _, (accepted, _, own) in shown.steps)


def test_a_rejected_tail_is_of_the_branch_that_was_accepted():
    # Two branches below the input: 5 6 7 and 8 9; the window's node 1 is no candidate.
    draft = Draft((4, 5, 6, 7, 8, 9), (0, 0, 2, 3, 0, 5), first_candidate=2)
    assert rejected_tail(draft, (5,)) == (6, 7)
    assert rejected_tail(draft, (8, 9)) == ()
    assert rejected_tail(draft, ()) == (5, 6, 7)


def test_the_oldest_turns_are_left_out_when_the_conversation_is_too_long(session):
    long = "word " * 450
    notes = lines(session, "/max_output_len 8", *[long] * 4).notes
    assert [note for note in notes if "left out" in note] == [
        "the context is full: the oldest turn is left out; /undo makes room",
        "the context is full: the 2 oldest turns are left out; /undo makes room",
    ]
    assert "4 turns, 2 left out" in lines(session, "/stats").out[0]
    assert "taken back: word word" in note(session, "/undo", "/undo")
    assert "2 turns\n" in lines(session, "/stats").out[0]
    assert note(session, "Go on.") == "cut at 8 tokens: /max_output_len allows more"


@pytest.mark.parametrize("wanted", [8, 128, 2000])
def test_answers_shrink_before_turns_are_left_out(llm, wanted):
    model, settings = ChatModel(llm), changed(ChatSettings(), {"max_output_len": wanted})
    half = "word " * 480
    for past, message, left_out in (
        ([ASK], "word " * 900, 0),
        ([ASK, half], half, 0),
        ([half, half], half, 1),
    ):
        turns = [Turn(text, "x") for text in past]
        ids, dropped, how = model.fitted(turns, message, settings)
        assert (dropped, how.sampling.max_output_len) == (left_out, min(wanted, 2048 - len(ids)))


def test_an_answer_that_the_context_ends_says_so(session):
    lines(session, "/max_output_len 8", "word " * 970)
    assert 64 < session.max_context - session.context < 128
    shown = lines(session, "/length 2000", "word word")
    assert shown.answers[0].finish_reason == "length"
    assert session.context == session.max_context
    assert "the answer ends here" in shown.notes[-1]
    assert len(session.turns) == 2


def test_a_message_that_never_fits_is_refused_and_nothing_forgotten(session):
    lines(session, ASK)
    assert "above max_seq_len 2048" in refusal(session, "word " * 3000)
    assert len(session.turns) == 1


def test_retry_answers_again_with_the_next_seed(session):
    assert "say something first" in refusal(session, "/retry")
    lines(session, "/temperature 2", "Say it.")
    (first,) = session.turns
    assert lines(session, "/retry").notes[0] == "/seed is now 1, for another draw"
    (second,) = session.turns
    assert second.message == first.message
    assert second.answer != first.answer
    (shorter,) = answers(session, "/temperature 0", "/length 3", "/retry")
    assert session.turns == [Turn(first.message, shorter.text)]


def test_undo_and_reset_forget(session):
    lines(session, ASK)
    before, kept = session.context, list(session.turns)
    assert note(session, "And the sum?", "/undo") == "taken back: And the sum?; 1 turn left"
    assert session.turns == kept
    assert abs(session.context - before) < 10
    lines(session, "/reset")
    assert (session.turns, session.context) == ([], 0)
    assert "say something first" in refusal(session, "/undo")


def test_a_system_message_stands_before_the_conversation(session, llm):
    lines(session, ASK)
    (turn,) = session.turns
    (answer,) = answers(session, "/system Write  short names.", "And the sum?")
    messages = [
        {"role": "system", "content": "Write  short names."},
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": turn.answer},
        {"role": "user", "content": "And the sum?"},
    ]
    prompt = llm.tokenizer.encode(llm.tokenizer.chat_text(messages), special=False)
    (expected,) = llm.generate(prompt, SamplingParams(max_output_len=24))
    assert answer.text == expected.text
    assert "which /chat off omits" in refusal(session, "/chat off")
    lines(session, "/system none", "/reset", ASK)
    assert session.turns == [turn]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/lookahead 9,9,9", "or open the model with --lookahead 9,9,9"),
        ("/length 2048", "max_output_len 2048 does not fit into the context of 2048 tokens"),
        ("/gamma 100", "above"),
        ("/gamma x", "/gamma: 'x' is not a valid integer"),
        ("/gamma 0", "/gamma: gamma is 0; /gamma must be"),
        ("/drafter draft:nowhere", "start again with --draft-model nowhere"),
        ("/egag on", "egag needs a draft model"),
        ("/system " + "word " * 2000, "the system message is"),
        ("/load nothing.json", "does not exist"),
        ("/save", "is not a file"),
        ("/save .", "'.' is not a file; write a path"),
        (
            "/save notes.txt",
            "not JSON: Expecting value in line 1; choose another path",
        ),
        ("/stats now", "/stats takes no value, and 'now' follows it"),
    ],
)
def test_what_the_model_cannot_do_is_refused_at_once(session, line, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Dear diary")
    lines(session, "/drafter ngram" if "gamma" in line else "/drafter lookahead")
    before = session.settings
    assert part in refusal(session, line)
    assert session.settings == before


def test_settings_show_their_values(session):
    assert note(session, "/gamma") == "/gamma is 4"
    assert note(session, "/lookahead 3,3,3") == "/lookahead is now 3,3,3"
    assert note(session, "/lookahead none") == "/lookahead is now auto"
    assert "always on" in note(session, "/cache off")
    assert "/temperature NUMBER" in lines(session, "/help").out[0]


def test_leaving_clearing_and_messages_that_begin_with_a_slash(session):
    assert [session.handle(line) for line in ("/quit", "/exit", "/clear")] == [False, False, True]
    assert session.recorder.shown.cleared == 1
    lines(session, "//help me", "", "   ")
    assert [turn.message for turn in session.turns] == ["/help me"]


def test_a_saved_chat_goes_on_as_if_nothing_had_been(session, llm, tmp_path):
    file = tmp_path / "chat.json"
    lines(session, "/processor nucleus 0.8 0.9", "/seed 3", "/drafter ngram,lookahead")
    lines(session, "/system Write tests.", "/stop END", ASK)
    lines(session, f"/save {file}")
    (expected,) = answers(session, "And the sum?")
    other = RecordedSession(llm, ChatSettings())
    assert note(other, f"/load {file}") == f"1 turn loaded from {file}"
    assert other.settings == session.settings
    assert other.turns == session.turns[:1]
    (answer,) = answers(other, "And the sum?")
    assert answer.ids == expected.ids
    assert note(other, f"/save {file}") == f"2 turns saved in {file}"  # it may be replaced


def test_a_saved_chat_that_this_model_cannot_continue_is_refused(session, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text('{"messages": [], "settings": {"drafter": ["draft:elsewhere"]}}')
    assert "--draft-model elsewhere" in refusal(session, f"/load {file}")
    assert session.settings.drafting.drafter == ("lookahead",)


def test_without_a_template_messages_are_plain_text(llm, monkeypatch):
    monkeypatch.setitem(llm.tokenizer._chats.__dict__, "template", None)
    session = RecordedSession(llm, ChatSettings())
    assert not session.settings.chat
    assert "no chat template" in refusal(session, "/chat on")
    assert "no chat template" in refusal(session, "/system Be brief.")


def test_a_template_that_fails_is_one_line(session, llm, monkeypatch):
    broken = "{{ raise_exception('no such\\nrole') }}"
    monkeypatch.setitem(llm.tokenizer._chats.__dict__, "template", ChatTemplate(broken, {}))
    text = refusal(session, ASK)
    assert "fails: no such" in text
    assert "/chat off" in text
    assert answers(session, "/chat off", ASK)


VALUES = ("on", "off", "none", "3", "0.5", "7,7,7", "auto", "greedy", "topk 0.5 3", "ngram")
LINES = st.tuples(
    st.sampled_from([*SlashCommands(click.Context(chat)).names, "x", ""]),
    st.text(st.characters(exclude_characters="/~\\"), max_size=12) | st.sampled_from(VALUES),
).map(lambda pair: f"/{pair[0]} {pair[1]}")


@examples(60)
@given(typed=st.lists(LINES, max_size=6))
def test_random_commands_never_raise(llm: LLM, tmp_path_factory, typed):
    session = RecordedSession(llm, changed(ChatSettings(), {"max_output_len": 4}))
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("files"))
    try:
        shown = lines(session, *typed)
    finally:
        os.chdir(before)
    assert all("\n" not in text for text in (*shown.refusals, *shown.notes))
