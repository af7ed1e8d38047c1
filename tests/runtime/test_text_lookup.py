"""What is looked up beside the pool: the text's own end."""

from __future__ import annotations

from itertools import pairwise, takewhile

from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.drafters.lookup import TextIndex

texts = st.lists(st.integers(0, 2), max_size=40)


def found(text, length=3):
    return TextIndex(list(text)).continuation(length)


def test_the_longest_match_comes_first_then_the_youngest():
    text = [1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3, 6, 7]
    assert found([*text, 1, 2, 3]) == (4, 9, 2)
    assert found([*text, 2, 3]) == (6, 7, 2)


def test_a_text_that_ends_too_early_repeats():
    assert found([5, 1, 2, 1, 2]) == (1, 2, 1)
    assert found([7, 7, 7]) == (7, 7, 7)


@given(texts, st.integers(1, 5))
def test_a_continuation_stood_behind_the_longest_match_and_behind_no_younger_one(text, length):
    pairs, tokens = list(pairwise(text)), found(text, length)
    assert bool(tokens) == (bool(pairs) and pairs[-1] in pairs[:-1])
    if tokens:
        matches = [(match(text, end), end) for end in range(2, len(text))]
        end = max(matches)[1]
        assert tokens == tuple([*text, *tokens][end : end + length])


def match(text, end):
    """How many tokens before `end` are those at the text's end, 16 at most."""
    pairs = zip(reversed(text[:end]), reversed(text), strict=False)
    return min(16, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))


@given(texts, st.lists(st.integers(1, 6), max_size=12))
def test_an_index_that_grows_finds_what_a_new_one_finds(text, lengths):
    grown: list[int] = []
    index = TextIndex(grown)
    for length in lengths:
        grown += text[len(grown) : len(grown) + length]
        assert index.continuation(3) == found(grown)
