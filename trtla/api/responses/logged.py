"""A text token by token, so that log probabilities go to the same items whole and streamed."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


class TextByToken:
    """Splits a text that arrives in chunks into the texts of its tokens."""

    def __init__(self) -> None:
        self._waiting: deque[Json] = deque()
        """Log probabilities of tokens whose text has not arrived."""
        self._bytes = b""
        """The text behind the last token that has."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def split(
        self, text: str, logged: Sequence[Json], *, is_last: bool
    ) -> list[tuple[str, list[Json]]]:
        """Return the texts of tokens, each with its log probability, as chats have them.

        The last text of all has the tokens of which nothing is shown, such as those of a stop.
        """
        self._bytes += text.encode()
        self._waiting += logged
        found = []
        while self._waiting and len(self._waiting[0]["bytes"]) <= len(self._bytes):
            token = self._waiting.popleft()
            found.append((self._taken(len(token["bytes"])), [token]))
        if is_last:
            found.append((self._taken(len(self._bytes)), [*self._waiting]))
        return found

    def _taken(self, size: int) -> str:
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return self._decoder.decode(taken)
