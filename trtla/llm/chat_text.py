"""Messages in a chat template, and the control tokens that belong to the template.

Users' messages are text: one that spells `<|im_end|>` ends no turn. A template may transform
contents in any way, so it is rendered a second time with the contents hidden: the control tokens of
that text belong to the template.

Control tokens are those that decoded texts omit. Other added tokens, such as `<think>` if it is
one, are words: they stay tokens anywhere in a text.
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

from trtla.errors import UsageError, named
from trtla.settings.messages import Messages, rewritten, written

_PRIVATE = range(0x10FFFD, 0xFFFFF, -1)
"""Characters without a meaning in any text."""
_MOST_CUTS = 32  # of the remaining parts of a token
Render = Callable[[Messages], str]


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

    def partition(self, mark: str) -> tuple[ChatText, str, ChatText]:
        """Partition as `str` does; the mark is no control token."""
        before, separator, _ = self.text.partition(mark)
        middle = len(before) + len(separator)
        return self._part(0, len(before)), separator, self._part(middle, len(self.text))

    def _part(self, start: int, stop: int) -> ChatText:
        if self.controls is None:
            return ChatText(self.text[start:stop])
        inside = (
            control for control in self.controls if start <= control.start and control.stop <= stop
        )
        moved = (
            Control(control.start - start, control.stop - start, control.token)
            for control in inside
        )
        return ChatText(self.text[start:stop], tuple(moved))


def unused(text: str, number: int) -> tuple[str, ...]:
    """Return `number` characters that the text lacks."""
    used = set(text)
    chars = tuple(islice((char for char in map(chr, _PRIVATE) if char not in used), number))
    if len(chars) < number:
        raise UsageError(
            "the messages hold every character for private use", "remove some of U+100000 and above"
        )
    return chars


def chat_text(render: Render, finder: ControlTokens, messages: Messages, text: str) -> ChatText:
    """Return a conversation with control tokens of the template alone.

    The text is the template's output for the messages. Only if the template inspects contents, and
    these hold control tokens too, it is rendered with altered contents that hide those.
    """
    names = finder.names(text)
    if not names:
        return ChatText(text)
    (fill,) = unused("".join((text, *written(messages))), 1)
    skeleton = _skeleton(render, messages, fill)
    skeleton_names = None if skeleton is None else finder.names(re.sub(f"{fill}+", fill, skeleton))
    inside = bool(finder.names(fill.join(written(messages))))
    if names == skeleton_names and not inside:
        return ChatText(text)
    if skeleton is not None and (runs := _aligned(text, skeleton, fill)) is not None:
        return ChatText(text, tuple(_placed(finder, skeleton, runs)))
    marked = (
        render(rewritten(messages, lambda text: _spoiled(finder, text, fill))) if inside else text
    )
    if _aligned(text, marked, fill) is not None and skeleton_names in (None, finder.names(marked)):
        return ChatText(text, finder.find(marked))
    return _broken(render, finder, messages)


def _skeleton(render: Render, messages: Messages, fill: str) -> str | None:
    """Render contents of the same length without meaning; None if the template fails."""

    def hidden(text: str) -> str:
        core = text.strip()
        return text.replace(core, fill * len(core), 1) if core else text

    try:
        return render(rewritten(messages, hidden))
    except UsageError:
        return None


def _aligned(text: str, marked: str, fill: str) -> list[tuple[int, int]] | None:
    """Return the spans of the fillers, if the marked text equals the text everywhere else."""
    if len(text) != len(marked):
        return None
    runs = [match.span() for match in re.finditer(f"{fill}+", marked)]
    edges = [0, *(edge for run in runs for edge in run), len(text)]
    kept = list(pairwise(edges))[::2]
    return runs if all(text[a:b] == marked[a:b] for a, b in kept) else None


def _placed(
    finder: ControlTokens, skeleton: str, runs: Sequence[tuple[int, int]]
) -> Iterator[Control]:
    """Yield the skeleton's control tokens, found with each run of fillers reduced to one."""
    fill = skeleton[runs[0][0]] if runs else ""
    short = re.sub(f"{fill}+", fill, skeleton) if runs else skeleton
    left, longer = deque(runs), 0
    for control in finder.find(short):
        while left and left[0][0] < control.start + longer:
            start, stop = left.popleft()
            longer += stop - start - 1
        yield Control(control.start + longer, control.stop + longer, control.token)


def _spoiled(finder: ControlTokens, text: str, fill: str) -> str:
    """Hide one character of each control token in a content."""
    letters = list(text)
    for control in finder.find(text):
        name = text[control.start : control.stop]
        letters[control.start + len(name) - len(name.lstrip() or name)] = fill
    return "".join(letters)


def _broken(render: Render, finder: ControlTokens, messages: Messages) -> ChatText:
    """Render with every character hidden that the contents' control tokens need."""
    texts = "".join(written(messages))
    hidden = sorted(finder.breaks(texts))
    marks = unused(texts, len(hidden))
    there, back = (
        str.maketrans(dict(zip(a, b, strict=True))) for a, b in ((hidden, marks), (marks, hidden))
    )
    marked = render(rewritten(messages, lambda text: text.translate(there)))
    shown = marked.translate(back)
    controls = finder.find(marked)
    return ChatText(shown, None if finder.find(shown) == controls else controls)


class ControlTokens:
    """The control tokens of a tokenizer.

    Args:
        ids: of the control tokens.
        added: all tokens that are matched before the vocabulary, by id.
        fast: the `tokenizers.Tokenizer`; None if transformers implements the tokenizer in Python.
        inner: that of transformers, if `fast` is None.
    """

    def __init__(
        self, ids: frozenset[int], added: dict[int, Any], fast: Any | None, inner: Any | None
    ) -> None:
        self._ids, self._added = ids, dict(sorted(added.items()))
        self._fast, self._inner = fast, inner

    @cached_property
    def _finder(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer with the added tokens alone, and the model's ids by its ids."""
        from tokenizers import Tokenizer, models

        finder = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if self._fast is not None and self._fast.normalizer is not None:
            finder.normalizer = self._fast.normalizer
        finder.add_tokens(list(self._added.values()))
        return finder, _own_ids(finder, self._added)

    def names(self, text: str) -> tuple[int, ...]:
        finder, ids_of = self._finder
        (encoding,) = finder.encode_batch_fast([text], add_special_tokens=False)
        ids = (ids_of.get(token) for token in encoding.ids)
        return tuple(token for token in ids if token in self._ids and token is not None)

    def find(self, text: str) -> tuple[Control, ...]:
        finder, ids_of = self._finder
        (encoding,) = finder.encode_batch([text], add_special_tokens=False)
        places = (
            (ids_of.get(token), at)
            for token, at in zip(encoding.ids, encoding.offsets, strict=True)
        )
        return tuple(
            Control(at[0], at[1], token)
            for token, at in places
            if token in self._ids and token is not None
        )

    def breaks(self, text: str) -> frozenset[str]:
        """Return the characters that control tokens need, as far as they are in the text, and those
        that combine with the character in front of them."""
        needed = {_needed(self._added[token].content) for token in self._ids & self._added.keys()}
        chars = (char for char in set(text) if needed & set(self._forms(char)))
        return frozenset((*chars, *filter(unicodedata.combining, set(text))))

    def _forms(self, char: str) -> str:
        normal = "" if char.isascii() else unicodedata.normalize("NFKD", char)
        if self._fast is not None and self._fast.normalizer is not None:
            normal += self._fast.normalizer.normalize_str(char)
        return char + char.lower() + char.upper() + normal

    def count(self, ids: Sequence[int]) -> int:
        """Count the control tokens among ids, except those of unknown characters."""
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
        """Encode a text with these control tokens only; other names of control tokens are spelt."""
        make = self._spelled_slowly if self._fast is None else self._spelled
        ids = make(text, controls)
        if self.count(ids) != sum(control.token not in self._unknown for control in controls):
            raise UsageError(
                "a message names a control token that this tokenizer cannot spell in other tokens",
                "remove it from the message, or take such names as control tokens: "
                f"{named('parse_special')}",
            )
        return ids

    def _spelled(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        """Encode with the same vocabulary without control tokens; a mark stands for each given
        one."""
        mark, cut = unused(text, 2)
        speller, ids_of = self._speller(mark, cut)
        spans = ((control.start, control.stop) for control in controls)
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        text = mark.join(text[a:b] for a, b in list(pairwise(edges))[::2])
        marked, dropped = map(speller.token_to_id, (mark, cut))
        forged = self._ids - self._unknown - ids_of.keys() - {marked, dropped}
        named = iter(controls)
        return tuple(
            next(named).token if token == marked else ids_of.get(token, token)
            for token in _uncontrolled(speller, forged, text, cut)
            if token != dropped
        )

    def _speller(self, mark: str, cut: str) -> tuple[Any, dict[int, int]]:
        """Create a tokenizer without the control tokens, and map its ids to the model's."""
        from tokenizers import AddedToken, Tokenizer

        assert self._fast is not None
        speller = Tokenizer(self._fast.model)
        if self._fast.normalizer is not None:
            speller.normalizer = self._fast.normalizer
        if self._fast.pre_tokenizer is not None:
            speller.pre_tokenizer = self._fast.pre_tokenizer
        words = {i: token for i, token in self._added.items() if i not in self._ids}
        marks = [AddedToken(char, normalized=False) for char in (mark, cut)]
        speller.add_tokens([*marks, *words.values()])
        return speller, _own_ids(speller, words)

    def _spelled_slowly(self, text: str, controls: Sequence[Control]) -> tuple[int, ...]:
        ids: list[int] = []
        at = 0
        for control in controls:
            ids += (*self._words(text[at : control.start]), control.token)
            at = control.stop
        return (*ids, *self._words(text[at:]))

    def _words(self, text: str) -> Iterator[int]:
        """Encode a text without control tokens, by a tokenizer in Python."""
        finder, ids_of = self._finder
        (encoding,) = finder.encode_batch([text], add_special_tokens=False)
        at = 0
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if (word := ids_of.get(token)) is not None and word not in self._ids:
                yield from (*self._plain(text[at:start]), word)
                at = stop
        yield from self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        """Encode a text without any added tokens, by a tokenizer in Python."""
        assert self._inner is not None
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return list(self._inner.encode(text, **options)) if text else []


def _uncontrolled(speller: Any, forged: frozenset[int], text: str, cut: str) -> list[int]:
    """Encode a text, cutting it where the vocabulary itself would form a control token."""
    for _ in range(_MOST_CUTS):
        (encoding,) = speller.encode_batch_fast([text], add_special_tokens=False)
        if forged.isdisjoint(encoding.ids):
            return list(encoding.ids)
        (encoding,) = speller.encode_batch([text], add_special_tokens=False)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        cuts = [(a + b) // 2 for token, (a, b) in places if token in forged and b - a > 1]
        if not cuts:
            break
        text = cut.join(text[a:b] for a, b in pairwise([0, *cuts, len(text)]))
    return list(encoding.ids)


def _own_ids(tokenizer: Any, added: dict[int, Any]) -> dict[int, int]:
    """Map the ids of added tokens in another tokenizer to the model's."""
    return {tokenizer.token_to_id(added_token.content): id_ for id_, added_token in added.items()}


def _needed(name: str) -> str:
    """Return a character of a token's name that is rare in texts."""
    return next((char for char in name if not char.isalnum() and not char.isspace()), name[0])
