"""A text token by token, so that log probabilities go to the same items whole and streamed."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = dict[str, Any]


class TextByToken:
    """Splits a text that arrives in chunks into the texts of its tokens.

    Args:
        signs: that the text has in place of tokens of other names.
    """

    def __init__(self, signs: Mapping[str, str]) -> None:
        self._names = {sign: name for name, sign in signs.items()}
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
        self._waiting += logged
        found: list[tuple[str, list[Json]]] = []
        parts = re.split(f"([{''.join(self._names)}])", text) if self._names else [text]
        for part in parts:
            found += self._sign(part) if part in self._names else self._letters(part)
        if is_last:
            found.append((self._taken(len(self._bytes)), [*self._waiting]))
        return found

    def _letters(self, text: str) -> Iterator[tuple[str, list[Json]]]:
        self._bytes += text.encode()
        while self._waiting and len(self._waiting[0]["bytes"]) <= len(self._bytes):
            token = self._waiting.popleft()
            yield self._taken(len(token["bytes"])), [token]

    def _sign(self, sign: str) -> Iterator[tuple[str, list[Json]]]:
        """The rest of the text in front of a sign, and the sign with its own token."""
        name, before = self._names[sign], list[Json]()
        while self._waiting and self._waiting[0]["token"] != name:
            before.append(self._waiting.popleft())
        yield self._taken(len(self._bytes)), before
        yield sign, [self._waiting.popleft()] if self._waiting else []

    def _taken(self, size: int) -> str:
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return self._decoder.decode(taken)
