"""Turns to token ids: prefixes are shared, the model's own ids stay, old turns make room."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from trtla.extras.chat.conversation import Turn, chat_ids, fitted, plain_ids
from trtla.llm.chat_text import ChatText

BEGIN = 1000


class Letters:
    """One id a character, offset so that ids of the model's own (small ones) are told apart."""

    def __init__(self, *, strips: bool = False) -> None:
        self.strips = strips

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        return ((BEGIN,) if special else ()) + tuple(BEGIN + 1 + ord(c) for c in text)

    def chat_text(self, messages: Sequence[dict[str, str]]) -> str:
        shown = [m["content"].strip() if self.strips else m["content"] for m in messages]
        roles = [m["role"][0] for m in messages]
        parts = [f"[{role}]{text}." for role, text in zip(roles, shown, strict=True)]
        return "".join(parts) + "[a]"

    def chat(self, messages: Sequence[dict[str, str]]) -> ChatText:
        return ChatText(self.chat_text(messages))

    def encode_chat(self, chat: ChatText) -> tuple[int, ...]:
        return self.encode(chat.text, special=False)


words = st.text("abc ", min_size=1, max_size=6)
turns = st.lists(
    st.builds(
        Turn,
        message=words,
        answer=words,
        answer_ids=st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple),
        finish_reason=st.just("end_id"),
    ),
    max_size=4,
)


@given(turns, words, words)
def test_a_transcript_begins_with_the_one_before_and_its_answer(past, message, following):
    before = plain_ids(past, message, Letters())
    turn = Turn(message, "x", (1, 2), "length")
    after = plain_ids([*past, turn], following, Letters())
    assert after[: len(before) + 2] == (*before, 1, 2)
    assert after[len(before) + 2 :] == Letters().encode("\n" + following, special=False)


@given(turns, words, words)
def test_a_template_keeps_the_answers_ids(past, message, following):
    before = chat_ids(past, message, Letters())
    after = chat_ids([*past, Turn(message, "x", (1, 2), "length")], following, Letters())
    kept = all(turn.answer == turn.answer.strip() for turn in past)
    if kept:
        assert after[: len(before) + 2] == (*before, 1, 2)
    assert after[-len("[a]") :] == Letters().encode("[a]", special=False)


def test_what_a_template_changes_is_tokenised_anew():
    past = [Turn("a", "b", (1,), "end_id"), Turn("c", " d ", (2,), "end_id")]
    ids = chat_ids(past, "e", Letters(strips=True))
    assert 1 in ids
    assert 2 not in ids
    assert Letters().encode("[a]d.", special=False)[0] in ids


def test_a_template_that_rewrites_answers_gets_its_way():
    class Shouting(Letters):
        def chat_text(self, messages: Sequence[dict[str, str]]) -> str:
            return super().chat_text(messages).upper()

    ids = chat_ids([Turn("a", "b", (1,), "end_id")], "c", Shouting())
    assert ids == Letters().encode("[U]A.[A]B.[U]C.[A]", special=False)


@given(turns, words, st.integers(0, 60), st.booleans())
def test_the_oldest_turns_make_room_and_no_more_than_needed(past, message, room, chat):
    found = fitted(past, message, Letters(), chat=chat, room=room)
    build = chat_ids if chat else plain_ids
    assert found.ids == build(past[found.dropped :], message, Letters())
    if len(found.ids) > room:
        assert found.dropped == len(past)
    if found.dropped:
        assert len(build(past[found.dropped - 1 :], message, Letters())) > room
