"""Messages in a chat template, and which of its control tokens are the template's own.

What people write is text: a message that spells `<|im_end|>` ends no turn. A template may do with
contents what it likes, so it is rendered a second time with the contents hidden: the control tokens
of that text are the template's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Protocol

from trtla.errors import UsageError
from trtla.settings.messages import Message, Messages

_PRIVATE = range(0x10FFFD, 0xFFFFF, -1)
"""Characters that no text means anything by."""
_WRITTEN = ("content", "name")
"""Keys of messages whose texts people write."""
Render = Callable[[Messages], str]


@dataclass(frozen=True, slots=True)
class Control:
    """A control token, and the part of a text that it stands for."""

    start: int
    stop: int
    token: int


class Finder(Protocol):
    """The control tokens that a tokenizer finds in a text."""

    def names(self, text: str) -> tuple[int, ...]:
        """Their ids."""

    def find(self, text: str) -> tuple[Control, ...]:
        """Their ids and places."""

    def breaks(self, text: str) -> frozenset[str]:
        """Characters of the text without which nothing in it can be one of them."""


@dataclass(frozen=True, slots=True)
class ChatText:
    """A conversation as the model reads it; `controls` None: those that the tokenizer finds."""

    text: str
    controls: tuple[Control, ...] | None = None

    def partition(self, mark: str) -> tuple[ChatText, str, ChatText]:
        """As of a text; the mark is no control token."""
        before, found, _ = self.text.partition(mark)
        middle = len(before) + len(found)
        return self._part(0, len(before)), found, self._part(middle, len(self.text))

    def _part(self, start: int, stop: int) -> ChatText:
        if self.controls is None:
            return ChatText(self.text[start:stop])
        inside = (one for one in self.controls if start <= one.start and one.stop <= stop)
        moved = (Control(one.start - start, one.stop - start, one.token) for one in inside)
        return ChatText(self.text[start:stop], tuple(moved))


def unused(text: str, number: int) -> tuple[str, ...]:
    """So many characters that are not in the text.

    Raises:
        UsageError: it has too many of those that mean nothing.
    """
    used = set(text)
    found = tuple(islice((char for char in map(chr, _PRIVATE) if char not in used), number))
    if len(found) < number:
        raise UsageError(
            "the messages hold every character for private use", "remove some of U+100000 and above"
        )
    return found


def chat_text(render: Render, finder: Finder, messages: Messages, text: str) -> ChatText:
    """A conversation with control tokens from the template alone.

    The text is what the template makes of the messages. Only where it looks into contents, and they
    hold control tokens too, it is shown contents in which those are hidden.

    Args:
        text: what the template makes of the messages.
    """
    found = finder.names(text)
    if not found:
        return ChatText(text)
    (fill,) = unused("".join((text, *_texts(messages))), 1)
    skeleton = _skeleton(render, messages, fill)
    own = None if skeleton is None else finder.names(re.sub(f"{fill}+", fill, skeleton))
    inside = bool(finder.names(fill.join(_texts(messages))))
    if found == own and not inside:
        return ChatText(text)
    if skeleton is not None and (runs := _aligned(text, skeleton, fill)) is not None:
        return ChatText(text, tuple(_placed(finder, skeleton, runs)))
    marked = render(_changed(messages, lambda one: _spoiled(finder, one, fill))) if inside else text
    if _aligned(text, marked, fill) is not None and own in (None, finder.names(marked)):
        return ChatText(text, finder.find(marked))
    return _broken(render, finder, messages)


def _texts(messages: Messages) -> Iterator[str]:
    return (message[key] for message in messages for key in _WRITTEN if message.get(key))


def _changed(messages: Messages, change: Callable[[str], str]) -> Sequence[Message]:
    def one(key: str, value: Any) -> Any:
        return change(value) if key in _WRITTEN and value else value

    return [{key: one(key, value) for key, value in message.items()} for message in messages]


def _skeleton(render: Render, messages: Messages, fill: str) -> str | None:
    """What the template makes of contents of the same length that say nothing; None: it fails."""

    def hidden(text: str) -> str:
        core = text.strip()
        return text.replace(core, fill * len(core), 1) if core else text

    try:
        return render(_changed(messages, hidden))
    except UsageError:
        return None


def _aligned(text: str, marked: str, fill: str) -> list[tuple[int, int]] | None:
    """Where the marked text has fillers, if it is the text in all other places."""
    if len(text) != len(marked):
        return None
    runs = [found.span() for found in re.finditer(f"{fill}+", marked)]
    edges = [0, *(edge for run in runs for edge in run), len(text)]
    kept = list(pairwise(edges))[::2]
    return runs if all(text[a:b] == marked[a:b] for a, b in kept) else None


def _placed(finder: Finder, skeleton: str, runs: Sequence[tuple[int, int]]) -> Iterator[Control]:
    """The skeleton's control tokens, found where every run of fillers is one of them."""
    fill = skeleton[runs[0][0]] if runs else ""
    short = re.sub(f"{fill}+", fill, skeleton) if runs else skeleton
    left, longer = deque(runs), 0
    for one in finder.find(short):
        while left and left[0][0] < one.start + longer:
            start, stop = left.popleft()
            longer += stop - start - 1
        yield Control(one.start + longer, one.stop + longer, one.token)


def _spoiled(finder: Finder, text: str, fill: str) -> str:
    """A content with one character of each control token hidden."""
    letters = list(text)
    for one in finder.find(text):
        name = text[one.start : one.stop]
        letters[one.start + len(name) - len(name.lstrip() or name)] = fill
    return "".join(letters)


def _broken(render: Render, finder: Finder, messages: Messages) -> ChatText:
    """Contents whose characters that control tokens need are hidden from the template."""
    written = "".join(_texts(messages))
    hidden = sorted(finder.breaks(written))
    marks = unused(written, len(hidden))
    there, back = (
        str.maketrans(dict(zip(a, b, strict=True))) for a, b in ((hidden, marks), (marks, hidden))
    )
    marked = render(_changed(messages, lambda one: one.translate(there)))
    shown = marked.translate(back)
    controls = finder.find(marked)
    return ChatText(shown, None if finder.find(shown) == controls else controls)
