"""Prompt lookup: what followed the text's end where it stood before, longest match first.

Prompt and output are searched. Counts, other requests and models play no part.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.draft import Draft, Drafter, StepLimit
from trtla.runtime.drafters.pools import TextIndex
from trtla.runtime.drafters.shapes import ChainLength

_LONGEST_CONTEXT = 16  # tokens compared: of matches this long the youngest is as good as any


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
        self._index = TextIndex(self._text, _LONGEST_CONTEXT)

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The continuation of the longest match, the youngest of equally long ones."""
        length = self._length.now(limit)
        found = self._index.continuations(length, 1) if length > 0 else []
        return Draft.chain(found[0][1] if found else ())

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Go on with the text."""
        self._text += committed
        self._length.commit(len(committed))
