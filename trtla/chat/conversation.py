"""A conversation as turns, and the token ids that the model reads for its next answer.

What the model wrote stays the ids it drew: tokenised anew, its text may become other tokens, and
the K/V cache could not be shared. Knows no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.llm.chat_text import ChatText
from trtla.runtime.request import FinishReason

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}answer{}\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for an answer while the chat template is filled in; its ids are put there afterwards."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str
    answer_ids: tuple[int, ...]
    """As drawn, an end token left out."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the model reads, and how many of the oldest turns had to be left out."""

    ids: tuple[int, ...]
    dropped: int


def plain_ids(
    turns: Sequence[Turn], message: str, tokenizer: Tokenizer, system: str = ""
) -> tuple[int, ...]:
    """The raw transcript, for models without a chat template: a new message on a line of its own.

    The first message is tokenised as `trtla run` does, so that its answer is the same. A system
    message has no place in it.
    """
    ids: list[int] = []
    for number, text in enumerate([*(turn.message for turn in turns), message]):
        ids += tokenizer.encode(f"\n{text}", special=False) if number else tokenizer.encode(text)
        if number < len(turns):
            ids += turns[number].answer_ids
    return tuple(ids)


def chat_ids(
    turns: Sequence[Turn], message: str, tokenizer: Tokenizer, system: str = ""
) -> tuple[int, ...]:
    """The conversation in the chat template, earlier answers as the ids they were drawn as.

    Templates may change an answer (most strip it). Where they do, its text is tokenised anew: what
    the template says goes before what the cache holds.
    """
    marks = [_MARK.format(number) for number in range(len(turns))]
    kept = [turn.answer == turn.answer.strip() for turn in turns]
    shown = [
        mark if keep else turn.answer for turn, mark, keep in zip(turns, marks, kept, strict=True)
    ]
    chat = tokenizer.chat(_messages(turns, shown, message, system))
    real = _messages(turns, [turn.answer for turn in turns], message, system)
    if _filled(chat.text, turns, marks) != tokenizer.chat_text(real):
        return tokenizer.encode_chat(tokenizer.chat(real))
    return _spliced(chat, turns, marks, tokenizer)


def fitted(
    turns: Sequence[Turn],
    message: str,
    tokenizer: Tokenizer,
    *,
    chat: bool,
    room: int,
    system: str = "",
) -> Fitted:
    """Ids of at most `room` tokens, leaving out the oldest turns that there is no room for.

    Neither the message nor the system message is ever cut: where they alone are too long, so is the
    result.
    """
    build = chat_ids if chat else plain_ids

    def without(dropped: int) -> tuple[int, ...]:
        return build(turns[dropped:], message, tokenizer, system)

    def fits(dropped: int) -> bool:
        return len(without(dropped)) <= room

    ids, dropped = without(0), 0
    if len(ids) > room and turns:
        dropped = bisect_left(range(len(turns)), True, lo=1, key=fits)
        ids = without(dropped)
    return Fitted(ids, dropped)


def _messages(
    turns: Sequence[Turn], answers: Sequence[str], message: str, system: str
) -> list[dict[str, str]]:
    found = [{"role": "system", "content": system}] if system else []
    for turn, answer in zip(turns, answers, strict=True):
        found.append({"role": "user", "content": turn.message})
        found.append({"role": "assistant", "content": answer})
    return [*found, {"role": "user", "content": message}]


def _filled(text: str, turns: Sequence[Turn], marks: Sequence[str]) -> str:
    for turn, mark in zip(turns, marks, strict=True):
        text = text.replace(mark, turn.answer)
    return text


def _spliced(
    chat: ChatText, turns: Sequence[Turn], marks: Sequence[str], tokenizer: Tokenizer
) -> tuple[int, ...]:
    ids: list[int] = []
    for turn, mark in zip(turns, marks, strict=True):
        before, found, after = chat.partition(mark)
        if found:
            ids += (*tokenizer.encode_chat(before), *turn.answer_ids)
            chat = after
    return (*ids, *tokenizer.encode_chat(chat))
