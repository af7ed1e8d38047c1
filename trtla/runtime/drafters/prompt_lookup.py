"""Prompt lookup: what followed the text's end where it stood before, longest match first.

Prompt and output are searched. Counts, other requests and models play no part.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.draft import Draft, Drafter
from trtla.runtime.drafters.shapes import ChainLength

_LONGEST_CONTEXT = 16  # tokens compared: of matches this long the youngest is as good as any
_MOST_PLACES = 64  # of a pair of tokens that are looked at: bounds the time of a look-up


class PromptLookupDrafter(Drafter):
    """The drafter of one request; a match has at least two tokens.

    Args:
        gamma: most tokens of a draft.
        prompt: prompt tokens.
        max_output_len: of the request; drafts become shorter near it. None: they do not.
    """

    def __init__(
        self, gamma: int, prompt: Sequence[int], max_output_len: int | None = None
    ) -> None:
        self._length = ChainLength(gamma, max_output_len)
        self._text = list(prompt)
        self._index = TextIndex(self._text)

    def propose(self) -> Draft:
        """The continuation of the longest match, the youngest of equally long ones."""
        length = self._length.now()
        return Draft.chain(self._index.continuation(length) if length > 0 else ())

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Go on with the text."""
        self._text += committed
        self._length.commit(len(committed))


class TextIndex:
    """A growing text, and for each place the one before where the same two tokens ended.

    Args:
        text: the tokens so far; its owner appends to it.
    """

    def __init__(self, text: list[int]) -> None:
        self._text = text
        self._last: dict[tuple[int, int], int] = {}
        self._before = [0]
        """0: none."""

    def continuation(self, length: int) -> tuple[int, ...]:
        """What followed the longest match of the text's end, the youngest of equally long ones.

        Where the text ends too early it is taken to repeat from there. Empty where nothing matches.
        """
        self._catch_up()
        place = self._longest_match()
        after = self._text[place + 1 : place + 1 + length] if place else []
        while after and len(after) < length:
            after += after[: length - len(after)]
        return tuple(after)

    def _catch_up(self) -> None:
        text, last, before = self._text, self._last, self._before
        for place in range(len(before), len(text)):
            pair = (text[place - 1], text[place])
            before.append(last.get(pair, 0))
            last[pair] = place

    def _longest_match(self) -> int:
        """The place of a match's last token; 0 where there is none."""
        best, longest, place = 0, 1, self._before[-1]
        for _ in range(_MOST_PLACES):  # later places first
            if not place or longest == _LONGEST_CONTEXT:
                break
            context = self._context(place)
            if context > longest:
                best, longest = place, context
            place = self._before[place]
        return best

    def _context(self, place: int) -> int:
        """How many tokens up to a place are those up to the text's end; two are known to be."""
        text, back, count = self._text, len(self._text) - 1 - place, 2
        while count < _LONGEST_CONTEXT and count <= place:
            if text[place - count] != text[place + back - count]:
                break
            count += 1
        return count
