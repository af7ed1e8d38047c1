"""The lookahead window: W columns of Jacobi iterates, N-1 levels deep, as part of the draft tree.

Cell (level l, column j) stands at the input's position + l + j once the window is full. While it
fills (N-2 warm-up steps) only f < N-1 levels exist and N-2-f filler tokens stand between the input
and column 0, as in TensorRT-LLM, so that the draft budget holds for every (W, N, G).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trtla.settings.lookahead import LookaheadConfig


@lru_cache(maxsize=1024)
def window_parents(window_size: int, fillers: int, levels: int, full: bool) -> tuple[int, ...]:
    """Parents of the window's nodes: fillers, level 0, level 1, ...; node 0 is the input.

    In a full window the input token itself is column 0 of level 0.
    """
    parents = list(range(fillers))
    below = [0] if full else []
    while len(below) < window_size:
        node = len(parents) + 1
        parents.append(below[-1] if below else fillers)
        below.append(node)
    for _ in range(levels - 1):
        first = len(parents) + 1
        parents.extend(below)
        below = list(range(first, first + window_size))
    return tuple(parents)


@lru_cache(maxsize=1024)
def newest_nodes(window_size: int, fed: int, levels: int, full: bool) -> tuple[int, ...]:
    """Nodes of the newest level, whose greedy next tokens become the next level."""
    if full and levels == 1:
        return tuple(range(window_size))
    return tuple(range(fed + 1 - window_size, fed + 1))


class LookaheadWindow:
    """The window of one request: what to feed, and what a step's predictions turn it into.

    Args:
        config: the request's triple, N >= 2.
        seed: W + N - 3 tokens that fill it at the start (they change speed, never text).
    """

    def __init__(self, config: LookaheadConfig, seed: Sequence[int]) -> None:
        self._width, self._ngram = config.window_size, config.ngram_size
        self._fillers = tuple(seed[: max(0, self._ngram - 3)])
        first_level = list(seed[len(self._fillers) :])
        if self._ngram == 2:
            first_level.insert(0, -1)  # column 0 of level 0 is always the input token
        self._levels = [first_level]

    @property
    def full(self) -> bool:
        """True once all N-1 levels exist and every step yields W n-grams."""
        return len(self._levels) == self._ngram - 1

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The cells, oldest level first; W of each level. Column 0 of level 0 is nothing in a full
        window, where the input token stands for it."""
        return tuple(map(tuple, self._levels))

    @property
    def fillers(self) -> tuple[int, ...]:
        """Tokens that stand before column 0 while the window fills."""
        return self._fillers[len(self._levels) - 1 :]

    def tokens(self) -> tuple[int, ...]:
        """Tokens to feed, in the order of `parents`."""
        first, *rest = self._levels
        cells = first[1:] if self.full else first
        return (*self.fillers, *cells, *(token for level in rest for token in level))

    @property
    def size(self) -> int:
        """How many tokens it feeds."""
        return self._waiting + self._width * len(self._levels) - self.full

    def parents(self) -> tuple[int, ...]:
        """Parent nodes of `tokens`."""
        return window_parents(self._width, self._waiting, len(self._levels), self.full)

    def newest(self) -> tuple[int, ...]:
        """Nodes whose predictions `advance` wants."""
        return newest_nodes(self._width, self.size, len(self._levels), self.full)

    @property
    def _waiting(self) -> int:
        return max(0, len(self._fillers) - len(self._levels) + 1)

    def advance(self, input_token: int, newest: Sequence[int]) -> list[tuple[int, ...]]:
        """Take the newest level's predictions: harvest the columns' n-grams, roll one level.

        Args:
            input_token: the step's input token, the key of column 0.
            newest: predictions of the nodes in `newest()`, W tokens.

        Returns:
            W n-grams of N tokens, key first, columns in order; none while the window fills.
        """
        self._levels.append(list(newest))
        if len(self._levels) < self._ngram:
            return []
        self._levels[0][0] = input_token
        ngrams = list(zip(*self._levels, strict=True))
        del self._levels[0]
        return ngrams
