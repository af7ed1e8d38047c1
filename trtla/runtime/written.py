"""The distinct tokens of a text as it grows, and how often each is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

_FIRST_ROOM = 64


class Written:
    """Distinct tokens of a text, and those that have a bias.

    Args:
        prompt: tokens of the text that count as seen; empty where none does.
        bias: (token, number) pairs.
    """

    def __init__(self, prompt: Sequence[int], bias: Sequence[tuple[int, float]]) -> None:
        self._places: dict[int, int] = {}
        self._length = 0  # output tokens that are counted
        self._ids = np.empty(_FIRST_ROOM, np.int64)
        self._numbers = np.zeros((3, _FIRST_ROOM), np.float32)  # biases, seen, counts
        for token, number in bias:
            place = self._place(token)  # the arrays may grow
            self._numbers[0, place] = number
        for token in dict.fromkeys(prompt):
            place = self._place(token)
            self._numbers[1, place] = 1

    @property
    def ids(self) -> np.ndarray:
        """The tokens, int64; views, as the next ones, until a token is added."""
        return self._ids[: len(self._places)]

    @property
    def biases(self) -> np.ndarray:
        """Their biases, float32."""
        return self._numbers[0, : len(self._places)]

    @property
    def seen(self) -> np.ndarray:
        """Above 0 where the token is in prompt or output."""
        return self._numbers[1, : len(self._places)]

    @property
    def counts(self) -> np.ndarray:
        """How often each is in the output."""
        return self._numbers[2, : len(self._places)]

    def follow(self, output_ids: Sequence[int]) -> None:
        """Count what the output has grown by."""
        self._add(output_ids[self._length :], 1)
        self._length = len(output_ids)

    @contextmanager
    def ahead(self, path: Sequence[int]) -> Iterator[None]:
        """Meanwhile a path goes on behind the output."""
        self._add(path, 1)
        try:
            yield
        finally:
            self._add(path, -1)

    def _add(self, tokens: Sequence[int], number: int) -> None:
        for token in tokens:
            place = self._place(token)
            self._numbers[1:, place] += number

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            more = np.zeros_like(self._numbers)
            self._numbers = np.concatenate((self._numbers, more), axis=1)
        self._ids[place] = token
        return place
