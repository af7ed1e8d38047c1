"""Prompt lookup behind the real step loop: the text is plain decoding's, drafts are what stood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.drafted import (
    assert_within_limits,
    one_per_request,
    real_model_says_the_same,
)
from tests.support.examples import examples
from tests.support.toys import (
    greedy_scores,
    hash_scores,
    plain,
    request,
    run,
    tokens_of,
    toy_executor,
)
from trtla.runtime.draft import NO_DRAFT
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


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4),
    gammas,
    st.sampled_from([0.3, 0.8, 1.5]),
    st.sampled_from([1.0, 0.8]),
    st.integers(0, 999),
)
def test_i2_sampled_texts_of_a_batch_are_those_of_plain_decoding(prompts, gamma, heat, top_p, salt):
    scores = hash_scores(6, salt)
    asked = [
        request(prompt, 25, None, i, temperature=heat * (i != 1), seed=salt + i, top_p=top_p)
        for i, prompt in enumerate(prompts)
    ]
    together, _ = toy_executor(scores, 6, AUTOREGRESSIVE, drafter=lookup(gamma))
    outputs = run(together, asked)
    for one in asked:
        alone, _ = toy_executor(scores, 6, AUTOREGRESSIVE)
        assert tokens_of(outputs[one.request_id]) == tokens_of(run(alone, [one])[one.request_id])


def drafted(text, gamma=4, **room):
    return PromptLookupDrafter(gamma, text, **room).propose().tokens


def test_the_longest_match_wins_then_the_youngest():
    assert drafted([1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]) == (4, 9, 2, 3)
    assert drafted([2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]) == (5, 8, 1, 2)


def test_a_match_has_two_tokens_at_least():
    assert drafted([1, 2, 3, 1]) == ()
    assert PromptLookupDrafter(4, [1, 2, 3, 1]).propose() == NO_DRAFT


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
    executor, _ = toy_executor(
        greedy_scores(lambda s: period[len(s) % 6], 10), 10, AUTOREGRESSIVE, drafter=lookup(gamma)
    )
    outputs = run(executor, [request(period * 2, 1 + 6 * (gamma + 1))])[0]
    assert tokens_of(outputs) == plain(lambda s: period[len(s) % 6], period, 1 + 6 * (gamma + 1))
    assert outputs[-1].stats.step_lengths == [1] + [gamma + 1] * 6


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("heat", [0.0, 0.2])
def test_a_real_model_says_the_same(monkeypatch, compiled, heat):
    real_model_says_the_same(monkeypatch, compiled, heat, lookup(4))
