"""The triples that are looked at: which there are, which of them are tried first.

Plain integers; what a triple brings or costs is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

WINDOWS = (1, 2, 3, 4, 5, 7, 10, 15)
NGRAMS = (2, 3, 4, 5, 6, 7, 8)
SETS = (1, 2, 3, 4, 5, 7, 10, 15)
MOST_DRAFT_LEN = 127
"""Draft tokens of the largest triple where nothing else limits it: a step of 128 tokens."""

FREE = LookaheadConfig(WINDOWS[-1], NGRAMS[-1], SETS[-1])
"""The limit of a model that no engine limits."""


def grid(limit: LookaheadConfig) -> list[LookaheadConfig]:
    """(1,1,0) and the triples within a server's limit, its own sizes among theirs.

    Triples without candidates (G 0) accept nothing and are never better than (1,1,0).
    """
    sizes = zip((WINDOWS, NGRAMS, SETS), limit.as_tuple(), strict=True)
    axes = [_within(values, most) for values, most in sizes]
    found = [triple for triple in _triples(axes) if triple.max_draft_len <= MOST_DRAFT_LEN]
    return [AUTOREGRESSIVE, *found]


def _within(values: Sequence[int], most: int) -> list[int]:
    """The values up to `most`, and `most` itself where it lies between them."""
    own = [value for value in values if value <= most]
    if values[0] <= most <= values[-1] and most not in own:
        own.append(most)
    return own


def _triples(axes: Sequence[Sequence[int]]) -> Iterator[LookaheadConfig]:
    for window, ngram, guesses in product(*axes):
        yield LookaheadConfig(window, ngram, guesses)


def coarse(triples: Sequence[LookaheadConfig]) -> list[LookaheadConfig]:
    """Every second value of each axis, its ends included: where to look first."""
    drafting = [triple for triple in triples if not triple.is_autoregressive]
    kept = [set(_every_second(sorted({t.as_tuple()[axis] for t in drafting}))) for axis in range(3)]
    return [
        triple
        for triple in drafting
        if all(size in own for size, own in zip(triple.as_tuple(), kept, strict=True))
    ]


def _every_second(values: Sequence[int]) -> list[int]:
    return [*values[:-1:2], *values[-1:]]


def window_tokens(triple: LookaheadConfig) -> int:
    """Tokens that a full window feeds with the input token among them."""
    return triple.window_size * (triple.ngram_size - 1)
