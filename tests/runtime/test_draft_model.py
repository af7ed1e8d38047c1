"""A draft model changes no text; its cache follows the text; its blocks come back.

The invariants are those of the table in docs/algorithm.md: I1, I2 and I4 to I9.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.draft_models import DRAFT, alone, decode, guided, opened, prepared
from tests.support.examples import examples
from tests.support.toys import (
    greedy_scores,
    hash_rule,
    hash_scores,
    plain,
    request,
)
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.settings.drafting import DrafterSettings

gammas = st.builds(lambda gamma: DrafterSettings(DRAFT, gamma=gamma), st.integers(1, 8))


def most(chosen):
    """The largest gamma that the settings allow."""
    return chosen.largest_gamma if chosen.egag else chosen.gamma


def mostly(rule, other, period):
    """A rule that says something else at each `period`-th text length."""
    return lambda text: other(text) if len(text) % period == 0 else rule(text)


@examples(80)
@given(
    st.sampled_from([2, 3, 7]),
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.lists(st.integers(0, 1), min_size=1, max_size=9),
    st.integers(1, 40),
    gammas | guided,
)
def test_i1_i6_i9_greedy_text_is_plain_decodings_and_counters_add_up(
    vocab, salt, period, prompt, count, chosen
):
    rule = hash_rule(vocab, 4, salt)
    draft = greedy_scores(mostly(rule, hash_rule(vocab, 3, salt + 1), period), vocab)
    done = decode(greedy_scores(rule, vocab), draft, vocab, [request(prompt, count)], chosen)
    stats, steps = done.stats(), done.drafters[0].steps
    assert done.text() == plain(rule, prompt, count)
    assert count == stats.steps + stats.accepted + 1
    assert 0 <= stats.accepted <= stats.drafted <= most(chosen) * stats.steps
    assert (stats.drafted, stats.accepted) == (
        sum(step.drafted for step in steps),
        sum(step.accepted for step in steps),
    )
    assert done.group.totals.drafted == stats.drafted
    assert done.group.cache.pool.num_free == done.group.cache.pool.num_blocks


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from([0.3, 0.8, 1.5]),
    st.integers(0, 4),
    st.sampled_from([1.0, 0.8]),
    st.integers(0, 999),
    gammas | guided,
    st.integers(4, 30),
)
def test_i2_sampled_texts_of_a_mixed_batch_are_plain_decodings(
    prompts, heat, top_k, top_p, salt, chosen, budget
):
    asked = [
        request(prompt, 25 - 3 * i, None, i, temperature=heat * (i != 1), seed=salt + i,
                top_k=top_k, top_p=top_p)
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    scores, draft = hash_scores(6, salt), hash_scores(6, salt + (salt % 2), 2.5)
    done = decode(scores, draft, 6, asked, chosen, budget=budget)
    for one in asked:
        assert done.text(one.request_id) == alone(scores, 6, one)


@pytest.mark.parametrize("heat", [0.0, 0.7, 1.4])
@pytest.mark.parametrize("top_k", [0, 3])
def test_i4_equal_models_always_agree(heat, top_k):
    scores = hash_scores(9, 5)
    asked = request([1, 2], 41, temperature=heat, top_k=top_k, top_p=0.9, seed=3)
    done = decode(scores, scores, 9, [asked], DrafterSettings(DRAFT, gamma=4))
    assert done.stats().accepted == done.stats().drafted == 32
    assert done.stats().step_lengths == [1] + [5] * 8


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_i5_models_that_never_agree_say_one_token_a_step(heat):
    def half(offset):
        return lambda text: [
            0.5 * (i + sum(text) % 3) if i % 2 == offset else -math.inf for i in range(8)
        ]

    asked = request([0, 2], 20, temperature=heat, seed=1)
    done = decode(half(0), half(1), 8, [asked], DrafterSettings(DRAFT, gamma=3))
    assert done.text() == alone(half(0), 8, asked)
    assert done.stats().accepted == 0
    assert done.stats().drafted > 0
    assert done.stats().step_lengths == [1] * 20


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("gamma", range(1, 9))
def test_i7_a_step_never_drafts_beyond_the_output(count, gamma):
    scores = hash_scores(5, 1)
    done = decode(scores, scores, 5, [request([3], count)], DrafterSettings(DRAFT, gamma=gamma))
    assert len(done.text()) == count
    rooms = [step.drafted for step in done.drafters[0].steps]
    assert all(drafted <= min(gamma, count - 2) for drafted in rooms)
    assert all(fed <= gamma + 1 for fed in done.target.fed)


@pytest.mark.parametrize("ends", [[0], [4], [0, 3], [4, 0, 2]])
@pytest.mark.parametrize("gamma", [1, pytest.param(3, marks=pytest.mark.deep), 6])
def test_i8_text_ends_at_the_first_end_token_wherever_it_falls(ends, gamma):
    chosen, places = DrafterSettings(DRAFT, gamma=gamma), set()
    for salt in range(12):
        rule = hash_rule(6, 5, salt)
        draft = greedy_scores(mostly(rule, hash_rule(6, 3, salt), 4), 6)
        asked = [request([1, 2], 30, end_ids=ends)]
        done = decode(greedy_scores(rule, 6), draft, 6, asked, chosen)
        whole = plain(rule, [1, 2], 30)
        stop = next((i for i, token in enumerate(whole, 1) if token in ends), 30)
        assert done.text() == whole[:stop]
        places.add(done.stats().step_lengths[-1])
        assert done.group.cache.pool.num_free == done.group.cache.pool.num_blocks
    assert len(places) > 1


def test_sequences_of_a_step_are_drafted_for_in_the_same_forwards():
    scores = hash_scores(9, 2)
    asked = [request([1, 2, i], 21, None, i) for i in range(4)]
    chosen = DrafterSettings(DRAFT, gamma=4)
    together = decode(scores, scores, 9, asked, chosen)
    single = decode(scores, scores, 9, asked[:1], chosen)
    assert together.group.totals.forwards == single.group.totals.forwards == 16
    assert together.draft.fed == [4 * fed for fed in single.draft.fed]
    assert [together.text(i) for i in range(4)] == [alone(scores, 9, one) for one in asked]


def test_a_prompt_is_cached_in_stretches():
    scores = hash_scores(5, 3)
    asked = [request([i % 5 for i in range(50)], 12, None, i) for i in range(2)]
    done = decode(scores, scores, 5, asked, DrafterSettings(DRAFT, gamma=3), budget=17)
    assert max(done.draft.fed) == 17
    assert sum(done.draft.fed[:6]) == 100
    assert done.text(0) == done.text(1) == alone(scores, 5, asked[0])


def test_requests_without_a_place_in_the_cache_are_not_drafted_for_until_there_is_one():
    scores = hash_scores(9, 4)
    asked = [request([1, 2, i], 20 + 20 * i, None, i) for i in range(3)]
    done = decode(scores, scores, 9, asked, DrafterSettings(DRAFT), blocks=2)
    assert [done.text(i) for i in range(3)] == [alone(scores, 9, one) for one in asked]
    assert done.drafters[0].steps
    assert len(done.drafters[2].steps) < done.stats(2).steps
    assert done.group.cache.pool.num_free == 2


def test_blocks_come_back_when_a_request_is_cancelled():
    scores = hash_scores(9, 4)
    done = opened(scores, scores, 9, DrafterSettings(DRAFT))
    for i in range(3):
        done.executor.submit(request([1, 2, i], 60, None, i))
    for _ in range(3):
        done.executor.poll()
    assert done.group.cache.pool.num_free == done.group.cache.pool.num_blocks - 6
    done.executor.cancel(1)
    assert done.group.cache.pool.num_free == done.group.cache.pool.num_blocks - 4
    while done.executor.poll():
        pass
    assert done.group.cache.pool.num_free == done.group.cache.pool.num_blocks


def test_a_step_that_was_not_asked_for_is_caught_up_with():
    """As in a chain, where others may have filled the budget."""
    scores = hash_scores(9, 6)
    group, draft = prepared(scores, 9, DrafterSettings(DRAFT, gamma=2))
    drafter, text = group.drafter(request([1, 2, 3], 40)), [1, 2, 3]
    for committed in ([4], [5, 6, 7], [8]):
        drafter.observe((), committed)
        text += committed
    expected = draft_by_hand(scores, text, 2)
    assert drafter.propose().tokens == expected
    drafter.observe((), [*expected, 0])
    text += [*expected, 0]
    assert drafter.missing == 1
    assert drafter.propose().tokens == draft_by_hand(scores, text, 2)
    assert drafter.propose().tokens == draft_by_hand(scores, text, 2)
    assert draft.fed == [7, 1, 1, 2, 1]


def draft_by_hand(scores, text, count):
    def best(text):
        row = scores(text)
        return row.index(max(row))

    return tuple(plain(best, text, count))


def test_a_text_that_goes_on_as_drafted_still_has_a_token_to_feed():
    """Rejection sampling may say a token that it did not keep, where the residual is all 0."""
    scores = hash_scores(9, 6)
    group, _ = prepared(scores, 9, DrafterSettings(DRAFT, gamma=3))
    drafter = group.drafter(request([1, 2, 3], 40))
    drafter.observe((), [4])
    first, second, _ = drafter.propose().tokens
    drafter.observe((), [first, second])
    assert drafter.missing == 0
    text = [1, 2, 3, 4, first, second]
    assert drafter.propose().tokens == draft_by_hand(scores, text, 3)


def test_a_request_needs_no_more_blocks_than_its_text():
    scores = hash_scores(9, 4)
    done = decode(scores, scores, 9, [request([1], TOKENS_PER_BLOCK - 1)],
                  DrafterSettings(DRAFT, gamma=8), blocks=1)  # fmt: skip
    assert done.stats().accepted == done.stats().drafted > 0
