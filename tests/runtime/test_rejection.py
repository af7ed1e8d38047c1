"""Rejection sampling (Rule B): the law of texts is the target's with every draft model (I3)."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.draft_models import DRAFT, decode
from tests.support.sampled import CHOSEN, COUNT, distance, floor, law, sampled_texts
from tests.support.tensors import residual
from tests.support.toys import greedy_scores, hash_rule, hash_scores, plain, request
from trtla.runtime.sampling import accept as rejection
from trtla.runtime.sampling.accept import keeps
from trtla.settings.drafting import DrafterSettings
from trtla.settings.sampling import SamplingParams


def compared(counts, target, sampling):
    """Distance of the second and third token from their law, in floors, and that of the texts."""
    texts = law(target, [1, 0], 4, SamplingParams(**sampling))
    pairs, expected = Counter(), Counter()
    for text, count in counts.items():
        pairs[text[1:3]] += count
    for text, share in texts.items():
        expected[text[1:3]] += share
    return distance(pairs, expected, COUNT) / floor(expected, COUNT), texts


def only(numbers):
    """Scores that never say other tokens than these."""
    return lambda text: [
        0.4 * ((i + sum(text)) % 3) if i in numbers else -math.inf for i in range(5)
    ]


MODELS = {
    "alike": (hash_scores(5, 1), hash_scores(5, 1, 2.0)),
    "equal": (hash_scores(5, 1), hash_scores(5, 1)),
    "others": (hash_scores(5, 1, 8.0), hash_scores(5, 2, 8.0)),
    "q is zero where p is not": (hash_scores(5, 1), only({0, 3})),
    "p is zero where q is not": (only({0, 3}), hash_scores(5, 1)),
    "disjoint": (only({0, 3}), only({1, 4})),
}


FILTERS = {"top_k": 3, "top_p": 0.9}


@pytest.mark.deep(first=2)
@pytest.mark.parametrize(
    ("name", "filters"), [*((name, {}) for name in MODELS), ("others", FILTERS), ("alike", FILTERS)]
)
def test_i3_the_law_of_the_text_is_the_targets(name, filters):
    target, draft = MODELS[name]
    sampling = {"temperature": 1.2, **filters}
    counts, totals = sampled_texts(target, draft, 5, 4, **sampling)
    excess, expected = compared(counts, target, sampling)
    assert set(counts) <= set(expected)  # a token of probability 0 never comes out
    assert excess < 1.3
    if name == "equal":
        assert totals.accepted == totals.drafted > 0
    if name == "disjoint":
        assert totals.accepted == 0 < totals.drafted


def test_a_rule_without_the_residual_would_be_seen(monkeypatch):
    """The target's own law in its place is biased, and far above what chance gives."""
    monkeypatch.setattr(rejection, "residual", lambda p, q: p)
    target, draft = MODELS["q is zero where p is not"]
    counts, _ = sampled_texts(target, draft, 5, 4, temperature=1.2)
    assert compared(counts, target, {"temperature": 1.2})[0] > 2


@pytest.mark.deep
def test_rejection_keeps_more_drafts_than_equality_does():
    target, draft = hash_scores(5, 1), hash_scores(5, 2)
    plain_rule = DrafterSettings(DRAFT, gamma=3)
    kept = [
        sampled_texts(target, draft, 5, 4, chosen, temperature=1.2)[1]
        for chosen in (CHOSEN, plain_rule)
    ]
    rates = [totals.accepted / totals.drafted for totals in kept]
    assert rates[0] > rates[1]


def test_a_greedy_request_is_plain_decodings_text():
    rule = hash_rule(7, 4, 1)
    scores = greedy_scores(rule, 7)
    done = decode(scores, hash_scores(7, 2), 7, [request([1, 2], 30)], CHOSEN)
    assert done.text() == plain(rule, [1, 2], 30)


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    asked = [request([1, 2], 40, None, i, temperature=1.0, seed=i // 2) for i in range(4)]
    done = decode(hash_scores(7, 1), hash_scores(7, 2), 7, asked, CHOSEN)
    assert done.text(0) == done.text(1) != done.text(2) == done.text(3)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.floats(0, 1))
def test_a_token_is_kept_with_probability_p_over_q(noise, p, q):
    assert not keeps(noise, 0.0, q)
    assert keeps(noise, p, q) == (p > noise * q)
    assert p == 0 or keeps(noise / 2, p, p)


shares = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]), min_size=4, max_size=4)


@given(shares.filter(any), shares.filter(any))
def test_i3_one_position_has_the_targets_law_exactly(target, draft):
    """min(p, q) from kept drafts, the rest from the residual: together p."""
    p, q = (torch.tensor(part, dtype=torch.float64) / sum(part) for part in (target, draft))
    kept, rest = torch.minimum(p, q), residual(p, q)
    law = kept + (1 - kept.sum()) * rest / rest.sum()
    torch.testing.assert_close(law, p)


def test_a_residual_of_zeros_falls_back_to_p():
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    assert residual(p, q).tolist() == [0.25, 0.0]
    assert residual(p, p).tolist() == [0.5, 0.5]
