"""Messages in a chat template, and the control tokens that belong to the template.

Users' messages are text: one that spells `<|im_end|>` ends no turn. The control tokens of a
conversation are those that its text has without the messages.

Control tokens are those that decoded texts omit. Other added tokens, such as `<think>` if it is
one, are words: they stay tokens anywhere in a text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from trtla.errors import UsageError, named
from trtla.settings.messages import Messages, rewritten, written

MARK = "\U0010ffff"
"""A code point that no text may have, in place of a token or a message."""
_PRIVATE = range(0x100000, 0x10FFFE)
"""Characters without a meaning in any text."""
_MOST_SOUGHT = 1 << 28  # characters that are compared to find messages in a text
_WRITTEN = " /_-"
"""Characters of control tokens that commands for templates have, too, such as `/no_think`."""


@dataclass(frozen=True, slots=True)
class Control:
    """A control token, and its span of a text."""

    start: int
    stop: int
    token: int


@dataclass(frozen=True, slots=True)
class ChatText:
    """A conversation as the model reads it; `controls` None: those that the tokenizer
    recognises."""

    text: str
    controls: tuple[Control, ...] | None = None


def chat_text(
    render: Callable[[Messages], str], finder: ControlTokens, messages: Messages, text: str
) -> ChatText:
    """Return a conversation with control tokens of the template alone.

    Messages that spell none are seen by cutting them out. Else the template renders them again,
    with the characters hidden that control tokens need.

    Args:
        text: the template's output for the messages.
    """
    contents, names = [content.strip() for content in written(messages)], finder.names(text)
    own, spells = _without(finder, contents, text), spells_any(finder, messages)
    if not names or (own is not None and finder.names(own) == names and not spells):
        return ChatText(text)
    marked, marks = _marked(render, finder, messages, text)
    if finder.names(marked) == names and not spells:
        return ChatText(text)
    return _shown(finder, marked, marks)


def hidden_chat_text(
    render: Callable[[Messages], str], finder: ControlTokens, messages: Messages
) -> ChatText:
    """Return the same for messages whose names of control tokens the template refuses."""
    return _shown(finder, *_marked(render, finder, messages, ""))


def _marked(
    render: Callable[[Messages], str], finder: ControlTokens, messages: Messages, text: str
) -> tuple[str, dict[int, int]]:
    """Render messages with marks in place of what control tokens need, which the text lacks."""
    marks = _marks(finder, [content.strip() for content in written(messages)], text)
    return render(rewritten(messages, lambda content: _hidden(finder, marks, content))), marks


def _shown(finder: ControlTokens, marked: str, marks: dict[int, int]) -> ChatText:
    """Put back what marks stand for."""
    shown = marked.translate({mark: char for char, mark in marks.items()})
    controls = finder.find(marked)
    return ChatText(shown, None if controls == finder.find(shown) else controls)


def spells_any(finder: ControlTokens, messages: Messages) -> bool:
    """Return True if a message has the name of a control token."""
    return bool(finder.names(MARK.join(content.strip() for content in written(messages))))


def _marks(finder: ControlTokens, contents: Sequence[str], text: str) -> dict[int, int]:
    """Return characters that the messages and the text lack, for all that have to be hidden."""
    used = "".join((text, *contents))
    parts = "".join(filter(finder.is_part, contents))
    hidden = sorted({*filter(finder.is_risky, set(used)), *parts})
    marks = list(islice((mark for mark in _PRIVATE if chr(mark) not in used), len(hidden)))
    if len(marks) < len(hidden):
        raise _no_spelling("chat template")
    return dict(zip(map(ord, hidden), marks, strict=True))


def _hidden(finder: ControlTokens, marks: dict[int, int], content: str) -> str:
    """Hide what a control token may have of a content; all if that is a part of its name."""
    if finder.is_part(content.strip()):
        return content.translate(marks)
    chars = map(ord, filter(finder.is_risky, set(content)))
    return content.translate({char: marks[char] for char in chars})


def _without(finder: ControlTokens, contents: Sequence[str], text: str) -> str | None:
    """Return a text with a mark for each content; None if one that may be in a control token is
    not there as it is."""
    parts, at, is_long = [], 0, len(contents) * len(text) > _MOST_SOUGHT
    for content in filter(None, contents):
        if (start := text.find(content, at)) >= 0:
            parts.append(text[at:start])
            at = start + len(content)
        elif is_long or finder.is_part(content) or any(map(finder.is_risky, set(content))):
            return None
    return MARK.join((*parts, text[at:]))


class ControlTokens:
    """The control tokens of a tokenizer.

    Args:
        ids: of the control tokens.
        added: all tokens that are matched before the vocabulary, by id.
        unknown: ids of characters that have no token.
        fast: the `tokenizers.Tokenizer`; None if transformers implements the tokenizer in Python.
    """

    def __init__(
        self, ids: frozenset[int], added: dict[int, Any], unknown: Iterable[int], fast: Any | None
    ) -> None:
        self._control = {i: token for i, token in sorted(added.items()) if i in ids}
        self._words = {i: token for i, token in sorted(added.items()) if i not in ids}
        self._counted, self._fast = ids.difference(unknown), fast
        names = [token.content for token in self._control.values()]
        self._signs = {char for name in names for char in _signs(name)}

    @cached_property
    def _finder(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer of control tokens alone, and their ids by its ids."""
        from tokenizers import models

        finder = self._with(models.WordLevel({"": 0}, unk_token=""), self._control.values())
        return finder, _own_ids(finder, self._control)

    def names(self, text: str) -> tuple[int, ...]:
        """Return the control tokens that a text spells."""
        finder, own = self._finder
        (encoding,) = finder.encode_batch_fast([text], add_special_tokens=False)
        return tuple(own[token] for token in encoding.ids if token in own)

    def find(self, text: str) -> tuple[Control, ...]:
        """Return the control tokens that a text spells, with their spans."""
        finder, own = self._finder
        (encoding,) = finder.encode_batch([text], add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return tuple(Control(a, b, own[token]) for token, (a, b) in spans if token in own)

    def is_part(self, text: str) -> bool:
        """Return True if a text is a part of a control token's name."""
        return any(text in token.content for token in self._control.values())

    def is_risky(self, char: str) -> bool:
        """Return True for signs of control tokens, and what joins the character in front of it."""
        fast = self._fast
        forms = char + (fast.normalizer.normalize_str(char) if fast and fast.normalizer else "")
        return not self._signs.isdisjoint(forms) or unicodedata.combining(char) > 0

    def count(self, ids: Iterable[int]) -> int:
        """Count the control tokens among ids, except those of unknown characters."""
        return sum(map(self._counted.__contains__, ids))

    def spelled(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        """Encode a text with these control tokens only; other names of control tokens are spelt."""
        ids = None if self._fast is None or MARK in text else self._spelled(text, controls)
        if ids is None or self.count(ids) != self.count(control.token for control in controls):
            raise _no_spelling("tokenizer")
        return ids

    def _spelled(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        """Encode with the same vocabulary without control tokens; marks stand for them."""
        from tokenizers import AddedToken

        assert self._fast is not None
        mark = AddedToken(MARK, normalized=False)
        speller = self._with(self._fast.model, [mark, *self._words.values()])
        if self._fast.pre_tokenizer is not None:
            speller.pre_tokenizer = self._fast.pre_tokenizer
        edges = [0, *(edge for control in controls for edge in (control.start, control.stop))]
        text = MARK.join(text[a:b] for a, b in list(pairwise([*edges, len(text)]))[::2])
        (encoding,) = speller.encode_batch_fast([text], add_special_tokens=False)
        own, named = _own_ids(speller, self._words), iter(controls)
        marked = speller.token_to_id(MARK)
        return tuple(next(named).token if i == marked else own.get(i, i) for i in encoding.ids)

    def _with(self, model: Any, added: Iterable[Any]) -> Any:
        """Create a tokenizer with the same normalizer and these added tokens."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer(model)
        if self._fast is not None and self._fast.normalizer is not None:
            tokenizer.normalizer = self._fast.normalizer
        tokenizer.add_tokens(list(added))
        return tokenizer


def _signs(name: str) -> set[str]:
    """Return the characters of a name that are rare in texts; its first one if it has none."""
    return {char for char in name if not (char.isalnum() or char in _WRITTEN)} or {name[0]}


def _own_ids(tokenizer: Any, added: dict[int, Any]) -> dict[int, int]:
    """Map the ids of added tokens in another tokenizer to the model's."""
    return {tokenizer.token_to_id(added_token.content): id_ for id_, added_token in added.items()}


def _no_spelling(of: str) -> UsageError:
    return UsageError(
        f"a message names a control token that this {of} cannot spell in other tokens",
        "remove it from the messages, or take such names as control tokens: "
        f"{named('parse_special')}",
    )
