"""The n-gram storages against a list of what was counted, read anew for every question (I12)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.drafters.lookup import NgramStorage

tokens = st.integers(0, 2)
texts = st.lists(tokens, max_size=30)
events = st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=5), tokens), max_size=30)
orders = st.integers(2, 5)
kinds = st.sampled_from(["basic", "onelevel"])
PLENTY = 10**6


def contexts_of(sequence, order, kind):
    shortest = 1 if kind == "basic" else order - 1
    lengths = range(order - 1, shortest - 1, -1)
    return [tuple(sequence[-n:]) for n in lengths if n <= len(sequence)]


def counted(history, context, order, kind):
    """Tokens counted behind a context, oldest first."""
    return [token for sequence, token in history if context in contexts_of(sequence, order, kind)]


def leader(followers):
    """The highest count; on a tie the earlier best stays, replaced only when strictly beaten."""
    best = followers[0]
    for end in range(1, len(followers) + 1):
        so_far = followers[:end]
        if so_far.count(so_far[-1]) > so_far.count(best):
            best = so_far[-1]
    return best


def storage_of(history, order, kind="basic", capacity=PLENTY):
    storage = NgramStorage(order, kind, capacity)
    for sequence, token in history:
        storage.update(sequence, [token])
    return storage


def grams_of(history, order, kind):
    return {
        (*context, token)
        for sequence, token in history
        for context in contexts_of(sequence, order, kind)
    }


@given(events, orders, kinds, st.lists(tokens, max_size=6), st.randoms(use_true_random=False))
def test_i12_counts_and_the_leader_of_the_longest_known_context(
    history, order, kind, sequence, rng
):
    """Counts do not hang on the order of updates."""
    storage = storage_of(history, order, kind)
    shuffled = storage_of(rng.sample(history, len(history)), order, kind)
    known = [
        followers
        for context in contexts_of(sequence, order, kind)
        if (followers := counted(history, context, order, kind))
    ]
    assert storage.next_token(sequence) == (leader(known[0]) if known else None)
    grams = grams_of(history, order, kind)
    for gram in grams:
        followers = counted(history, gram[:-1], order, kind)
        assert storage.count(gram) == shuffled.count(gram) == followers.count(gram[-1]) > 0
    assert len(storage) == len(shuffled) == len(grams)


def test_i12_back_off_goes_from_long_to_short():
    storage = NgramStorage(4)
    storage.update([7, 8, 9], [1])
    for _ in range(5):
        storage.update([0, 0, 9], [2])
    assert storage.next_token([7, 8, 9]) == 1
    assert storage.next_token([5, 8, 9]) == 1
    assert storage.next_token([5, 5, 9]) == 2
    assert storage.next_token([9]) == 2
    assert storage.next_token([5]) is None


@given(texts, st.lists(tokens, min_size=1, max_size=8), orders, kinds)
def test_i12_a_text_and_several_next_tokens_count_one_after_the_other(text, more, order, kind):
    storage = NgramStorage(order, kind)
    storage.initialize(text)
    storage.update([0, *text], more)
    history = [(text[:end], text[end]) for end in range(1, len(text))]
    history += [([0, *text], token) for token in more]
    single = storage_of(history, order, kind)
    assert len(storage) == len(single)
    for sequence, _ in history:
        assert storage.next_token(sequence) == single.next_token(sequence)
    for gram in grams_of(history, order, kind):
        assert storage.count(gram) == single.count(gram)


@given(events, orders, kinds, st.integers(1, 12))
def test_memory_is_bounded_and_what_is_left_was_counted(history, order, kind, capacity):
    storage, fed = NgramStorage(order, kind, capacity), []
    for sequence, token in history:
        storage.update(sequence, [token])
        fed.append((sequence, token))
        assert len(storage) <= capacity
    kept = [gram for gram in grams_of(fed, order, kind) if storage.count(gram)]
    assert len(kept) == len(storage)
    assert all(storage.count(g) <= counted(fed, g[:-1], order, kind).count(g[-1]) for g in kept)


def test_what_was_used_longest_ago_goes_first():
    storage = NgramStorage(2, capacity=3)
    for token in (1, 2, 3):
        storage.update([token], [token + 10])
    assert storage.next_token([1]) == 11  # a look-up is a use
    storage.update([4], [14])
    assert [storage.next_token([token]) for token in (1, 2, 3, 4)] == [11, None, 13, 14]
    storage.update([3], [5])  # an update is one too
    assert storage.next_token([1]) is None
    assert storage.next_token([4]) == 14


def test_a_context_with_more_followers_than_fit_goes_as_a_whole():
    storage = NgramStorage(2, capacity=4)
    storage.update([0], range(5))
    assert (len(storage), storage.next_token([0])) == (0, None)


def test_a_long_text_stays_within_the_default_capacity():
    rng, storage = random.Random(0), NgramStorage(3)
    storage.initialize(rng.choices(range(30_000), k=60_000))
    assert 60_000 < len(storage) <= 1 << 16
