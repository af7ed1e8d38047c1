"""Prompt lookup behind the real step loop: the text is plain decoding's, drafts are what stood."""

from __future__ import annotations

from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.drafted import (
    assert_within_limits,
    one_per_request,
)
from tests.support.examples import examples
from tests.support.toys import plain, request, ruled, run, tokens_of
from trtla.runtime.drafters.lookup import PromptLookupDrafter
from trtla.settings.lookahead import AUTOREGRESSIVE

gammas = st.integers(1, 8)


def lookup(gamma):
    return one_per_request(
        lambda request: PromptLookupDrafter(
            gamma, request.input_ids, request.sampling.max_output_len
        )
    )


@examples(100)
@given(cases(), gammas, st.sets(st.integers(0, 10), max_size=2))
def test_i1_i6_i7_i8_greedy_text_counters_length_and_end(case, gamma, end_ids):
    rule, vocab, prompt, _, count, _ = case
    assert_within_limits(rule, vocab, prompt, count, gamma, lookup(gamma), end_ids)


def test_output_is_searched_too_and_a_short_end_repeats():
    drafter = PromptLookupDrafter(5, [7])
    drafter.observe((), (8, 9, 7, 8))
    assert drafter.propose().tokens == (9, 7, 8, 9, 7)


def test_drafts_end_where_the_output_must():
    drafter = PromptLookupDrafter(4, [1, 2, 1, 2], 5)
    for fed in (4, 3, 2, 1, 0):
        assert len(drafter.propose().tokens) == fed
        drafter.observe((), drafter.propose().tokens[:1])


@pytest.mark.parametrize("gamma", [1, 2, 4, 8])
def test_a_text_that_repeats_takes_gamma_plus_1_tokens_a_step(gamma):
    period = [5, 3, 8, 1, 9, 4]
    executor, _ = ruled(lambda s: period[len(s) % 6], 10, AUTOREGRESSIVE, drafter=lookup(gamma))
    outputs = run(executor, [request(period * 2, 1 + 6 * (gamma + 1))])[0]
    assert tokens_of(outputs) == plain(lambda s: period[len(s) % 6], period, 1 + 6 * (gamma + 1))
    assert outputs[-1].stats.step_lengths == [1] + [gamma + 1] * 6


texts = st.lists(st.integers(0, 2), max_size=40)


def found(text, length=3):
    return PromptLookupDrafter(length, text).propose().tokens


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
    end, drafter = 0, PromptLookupDrafter(3, ())
    for length in lengths:
        drafter.observe((), text[end : end + length])
        end += length
        assert drafter.propose().tokens == found(text[:end])
