"""Messages in a chat template, and which of its control tokens are the template's own.

What people write is text: a message that spells `<|im_end|>` ends no turn. A template may do with
contents what it likes, so it is rendered a second time with the contents hidden: the control tokens
of that text are the template's.

Control tokens are those that are left out of decoded texts. Other added tokens, such as `<think>`
where it is one, are words: they stay what they are wherever they stand.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from trtla.errors import UsageError
from trtla.settings.messages import Messages, rewritten, written

_PRIVATE = range(0x10FFFD, 0xFFFFF, -1)
"""Characters that no text means anything by."""
_MOST_CUTS = 32  # of what is left of a token
Render = Callable[[Messages], str]


@dataclass(frozen=True, slots=True)
class Control:
    """A control token, and the part of a text that it stands for."""

    start: int
    stop: int
    token: int


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
    """So many characters that are not in the text."""
    used = set(text)
    found = tuple(islice((char for char in map(chr, _PRIVATE) if char not in used), number))
    if len(found) < number:
        raise UsageError(
            "the messages hold every character for private use", "remove some of U+100000 and above"
        )
    return found


def chat_text(render: Render, finder: ControlTokens, messages: Messages, text: str) -> ChatText:
    """A conversation with control tokens from the template alone.

    The text is what the template makes of the messages. Only where it looks into contents, and they
    hold control tokens too, it is shown contents in which those are hidden.
    """
    found = finder.names(text)
    if not found:
        return ChatText(text)
    (fill,) = unused("".join((text, *written(messages))), 1)
    skeleton = _skeleton(render, messages, fill)
    own = None if skeleton is None else finder.names(re.sub(f"{fill}+", fill, skeleton))
    inside = bool(finder.names(fill.join(written(messages))))
    if found == own and not inside:
        return ChatText(text)
    if skeleton is not None and (runs := _aligned(text, skeleton, fill)) is not None:
        return ChatText(text, tuple(_placed(finder, skeleton, runs)))
    marked = (
        render(rewritten(messages, lambda one: _spoiled(finder, one, fill))) if inside else text
    )
    if _aligned(text, marked, fill) is not None and own in (None, finder.names(marked)):
        return ChatText(text, finder.find(marked))
    return _broken(render, finder, messages)


def _skeleton(render: Render, messages: Messages, fill: str) -> str | None:
    """What the template makes of contents of the same length that say nothing; None: it fails."""

    def hidden(text: str) -> str:
        core = text.strip()
        return text.replace(core, fill * len(core), 1) if core else text

    try:
        return render(rewritten(messages, hidden))
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


def _placed(
    finder: ControlTokens, skeleton: str, runs: Sequence[tuple[int, int]]
) -> Iterator[Control]:
    """The skeleton's control tokens, found where every run of fillers is one of them."""
    fill = skeleton[runs[0][0]] if runs else ""
    short = re.sub(f"{fill}+", fill, skeleton) if runs else skeleton
    left, longer = deque(runs), 0
    for one in finder.find(short):
        while left and left[0][0] < one.start + longer:
            start, stop = left.popleft()
            longer += stop - start - 1
        yield Control(one.start + longer, one.stop + longer, one.token)


def _spoiled(finder: ControlTokens, text: str, fill: str) -> str:
    """A content with one character of each control token hidden."""
    letters = list(text)
    for one in finder.find(text):
        name = text[one.start : one.stop]
        letters[one.start + len(name) - len(name.lstrip() or name)] = fill
    return "".join(letters)


def _broken(render: Render, finder: ControlTokens, messages: Messages) -> ChatText:
    """Contents whose characters that control tokens need are hidden from the template."""
    texts = "".join(written(messages))
    hidden = sorted(finder.breaks(texts))
    marks = unused(texts, len(hidden))
    there, back = (
        str.maketrans(dict(zip(a, b, strict=True))) for a, b in ((hidden, marks), (marks, hidden))
    )
    marked = render(rewritten(messages, lambda one: one.translate(there)))
    shown = marked.translate(back)
    controls = finder.find(marked)
    return ChatText(shown, None if finder.find(shown) == controls else controls)


class ControlTokens:
    """The control tokens of a tokenizer.

    Args:
        ids: of the control tokens.
        added: all tokens that are found in a text before anything else, by id.
        fast: the `tokenizers.Tokenizer`; None where transformers has the tokenizer in Python.
        inner: that of transformers, if `fast` is None.
    """

    def __init__(
        self, ids: frozenset[int], added: dict[int, Any], fast: Any | None, inner: Any | None
    ) -> None:
        self._ids, self._added = ids, dict(sorted(added.items()))
        self._fast, self._inner = fast, inner

    @cached_property
    def _finder(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that knows the added tokens alone, and the ids of its ids."""
        from tokenizers import Tokenizer, models

        finder = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if self._fast is not None and self._fast.normalizer is not None:
            finder.normalizer = self._fast.normalizer
        finder.add_tokens(list(self._added.values()))
        return finder, _own_ids(finder, self._added)

    def names(self, text: str) -> tuple[int, ...]:
        finder, own = self._finder
        (found,) = finder.encode_batch_fast([text], add_special_tokens=False)
        ids = (own.get(token) for token in found.ids)
        return tuple(token for token in ids if token in self._ids and token is not None)

    def find(self, text: str) -> tuple[Control, ...]:
        finder, own = self._finder
        (found,) = finder.encode_batch([text], add_special_tokens=False)
        places = ((own.get(token), at) for token, at in zip(found.ids, found.offsets, strict=True))
        return tuple(
            Control(at[0], at[1], token)
            for token, at in places
            if token in self._ids and token is not None
        )

    def breaks(self, text: str) -> frozenset[str]:
        """Characters of the text without which nothing in it can be a control token, and those
        that change the character in front of them."""
        needed = {_needed(self._added[token].content) for token in self._ids & self._added.keys()}
        found = (char for char in set(text) if needed & set(self._forms(char)))
        return frozenset((*found, *filter(unicodedata.combining, set(text))))

    def _forms(self, char: str) -> str:
        normal = "" if char.isascii() else unicodedata.normalize("NFKD", char)
        if self._fast is not None and self._fast.normalizer is not None:
            normal += self._fast.normalizer.normalize_str(char)
        return char + char.lower() + char.upper() + normal

    def count(self, ids: Sequence[int]) -> int:
        """How many of the ids are control tokens that a text has only by naming them."""
        return sum(map((self._ids - self._unknown).__contains__, ids))

    @cached_property
    def _unknown(self) -> frozenset[int]:
        strange = "".join(map(chr, (0x10FFFD, 0x3400, 0x1F9FF)))
        if self._fast is None:
            ids = self._plain(strange)
        else:
            ids = self._fast.encode(strange, add_special_tokens=False).ids
        return self._ids.intersection(ids)

    def spelled(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        """Ids of a text that has these control tokens and no others; what names one is spelt."""
        make = self._spelled_slowly if self._fast is None else self._spelled
        ids = make(text, controls)
        if self.count(ids) != sum(one.token not in self._unknown for one in controls):
            raise UsageError(
                "a message names a control token that this tokenizer cannot spell in other tokens",
                "remove it from the message, or take such names as control tokens: --parse-special",
            )
        return ids

    def _spelled(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        """By the same vocabulary without control tokens; one mark stands for all that belong."""
        mark, cut = unused(text, 2)
        speller, own = self._speller(mark, cut)
        edges = [0, *(edge for one in controls for edge in (one.start, one.stop)), len(text)]
        text = mark.join(text[a:b] for a, b in list(pairwise(edges))[::2])
        marked, dropped = map(speller.token_to_id, (mark, cut))
        forged = self._ids - self._unknown - own.keys() - {marked, dropped}
        named = iter(controls)
        return tuple(
            next(named).token if token == marked else own.get(token, token)
            for token in _uncontrolled(speller, forged, text, cut)
            if token != dropped
        )

    def _speller(self, mark: str, cut: str) -> tuple[Any, dict[int, int]]:
        """A tokenizer that knows all but the control tokens, and ids of its ids."""
        from tokenizers import AddedToken, Tokenizer

        assert self._fast is not None
        speller = Tokenizer(self._fast.model)
        if self._fast.normalizer is not None:
            speller.normalizer = self._fast.normalizer
        if self._fast.pre_tokenizer is not None:
            speller.pre_tokenizer = self._fast.pre_tokenizer
        words = {i: one for i, one in self._added.items() if i not in self._ids}
        marks = [AddedToken(one, normalized=False) for one in (mark, cut)]
        speller.add_tokens([*marks, *words.values()])
        return speller, _own_ids(speller, words)

    def _spelled_slowly(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        ids: list[int] = []
        at = 0
        for one in controls:
            ids += (*self._words(text[at : one.start]), one.token)
            at = one.stop
        return (*ids, *self._words(text[at:]))

    def _words(self, text: str) -> Iterator[int]:
        """Ids of a text without control tokens, by a tokenizer in Python."""
        finder, own = self._finder
        (found,) = finder.encode_batch([text], add_special_tokens=False)
        at = 0
        for token, (start, stop) in zip(found.ids, found.offsets, strict=True):
            if (word := own.get(token)) is not None and word not in self._ids:
                yield from (*self._plain(text[at:start]), word)
                at = stop
        yield from self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        """Ids of a text without any added tokens, by a tokenizer in Python."""
        assert self._inner is not None
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return list(self._inner.encode(text, **options)) if text else []


def _uncontrolled(speller: Any, forged: frozenset[int], text: str, cut: str) -> list[int]:
    """Ids of a text, cut wherever the vocabulary itself would make a control token of it."""
    for _ in range(_MOST_CUTS):
        (found,) = speller.encode_batch_fast([text], add_special_tokens=False)
        if forged.isdisjoint(found.ids):
            return list(found.ids)
        (found,) = speller.encode_batch([text], add_special_tokens=False)
        places = zip(found.ids, found.offsets, strict=True)
        cuts = [(a + b) // 2 for token, (a, b) in places if token in forged and b - a > 1]
        if not cuts:
            break
        text = cut.join(text[a:b] for a, b in pairwise([0, *cuts, len(text)]))
    return list(found.ids)


def _own_ids(tokenizer: Any, added: dict[int, Any]) -> dict[int, int]:
    """The ids of added tokens, by those that they have in another tokenizer."""
    return {tokenizer.token_to_id(one.content): token for token, one in added.items()}


def _needed(name: str) -> str:
    """A character of a token's name that texts have seldom."""
    return next((char for char in name if not char.isalnum() and not char.isspace()), name[0])
