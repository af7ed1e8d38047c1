"""A conversation as turns, and the token ids that the model reads for its next answer.

Answers stay the ids that the model drew: tokenised again, a text may become other tokens, which
could not share the K/V cache. This file needs no model.
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
"""A placeholder for an answer while the chat template is rendered; its ids replace it later."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str
    answer_ids: tuple[int, ...]
    """The drawn tokens, without an end token."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Fitted:
    """The model's input, and the number of oldest turns that were dropped."""

    ids: tuple[int, ...]
    dropped: int


def plain_ids(
    turns: Sequence[Turn], message: str, tokenizer: Tokenizer, system: str = ""
) -> tuple[int, ...]:
    """Return the raw transcript, for models without a chat template: a message on a line of its
    own.

    The first message is tokenised as by `trtla run`, so that its answer is the same. A system
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
    """Return the conversation in the chat template, with earlier answers as the drawn ids.

    Templates may change an answer (most strip it). If they do, or a message spells a control token,
    the text is tokenised again: the template has priority over a cached answer.
    """
    marks = [_MARK.format(number) for number in range(len(turns))]
    kept = [turn.answer == turn.answer.strip() for turn in turns]
    shown = [
        mark if keep else turn.answer for turn, mark, keep in zip(turns, marks, kept, strict=True)
    ]
    chat = tokenizer.chat(_messages(turns, shown, message, system))
    real = _messages(turns, [turn.answer for turn in turns], message, system)
    is_spelled = chat.controls is not None
    if is_spelled or _filled(chat.text, turns, marks) != tokenizer.chat_text(real):
        return tokenizer.encode_chat(tokenizer.chat(real))
    return _spliced(chat.text, turns, marks, tokenizer)


def fitted(
    turns: Sequence[Turn],
    message: str,
    tokenizer: Tokenizer,
    *,
    chat: bool,
    room: int,
    system: str = "",
) -> Fitted:
    """Return ids of at most `room` tokens, without the oldest turns if they do not fit.

    Neither the message nor the system message is ever cut: if they alone are too long, so is the
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
    messages = [{"role": "system", "content": system}] if system else []
    for turn, answer in zip(turns, answers, strict=True):
        messages.append({"role": "user", "content": turn.message})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": message}]


def _filled(text: str, turns: Sequence[Turn], marks: Sequence[str]) -> str:
    for turn, mark in zip(turns, marks, strict=True):
        text = text.replace(mark, turn.answer)
    return text


def _spliced(
    text: str, turns: Sequence[Turn], marks: Sequence[str], tokenizer: Tokenizer
) -> tuple[int, ...]:
    ids: list[int] = []
    for turn, mark in zip(turns, marks, strict=True):
        before, separator, after = text.partition(mark)
        if separator:
            ids += (*tokenizer.encode_chat(ChatText(before)), *turn.answer_ids)
            text = after
    return (*ids, *tokenizer.encode_chat(ChatText(text)))
