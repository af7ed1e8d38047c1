"""Gamma policies: EGAG's check values, bounds and average, what it does in decoding (I11)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.draft_models import decode, guided
from tests.support.examples import examples
from tests.support.toys import hash_scores, request
from trtla.runtime.drafters.draft_model import GammaPolicy, entropies
from trtla.runtime.stats import DraftStep, DraftTotals
from trtla.settings.drafting import DrafterSettings

VOCAB = 128256
DRAFT = ("draft:small",)


def egag(least, most, ema, vocab):
    return GammaPolicy(DrafterSettings(DRAFT, 4, True, least, most, ema), vocab)


@pytest.mark.parametrize(
    ("entropy", "gammas"),
    [
        (0.0, [4, 6, 8]),
        (0.1, [3, 5, 7]),
        (1.0, [3, 5, 7]),
        (2.0, [3, 4, 6]),
        (4.0, [2, 3, 5]),
        (math.log(VOCAB), [1, 1, 1]),
    ],
)
def test_check_values_of_the_rule(entropy, gammas):
    policies = [egag(1, most, 0.0, VOCAB) for most in (4, 6, 8)]
    assert [policy.choose(entropy).gamma for policy in policies] == gammas


def entropy_for(raw, most, vocab):
    """An entropy in the middle of those that give a raw gamma; 0 for the largest."""
    return 0.0 if raw == most else math.log(vocab) * (1 - (raw + 0.5) / most)


def test_the_average_weighs_the_past_and_rounds_half_to_even():
    policy = egag(1, 6, 0.9, VOCAB)
    choices = [policy.choose(entropy_for(raw, 6, VOCAB)) for raw in (6, 1, 1, 1)]
    assert [choice.raw for choice in choices] == [6, 1, 1, 1]
    assert [choice.gamma for choice in choices] == [6, 6, 5, 5]
    halves = egag(0, 6, 0.5, VOCAB)
    assert [halves.choose(entropy_for(raw, 6, VOCAB)).gamma for raw in (4, 5)] == [4, 4]


@given(
    st.integers(0, 8),
    st.integers(1, 8),
    st.floats(0, 0.99),
    st.integers(2, 10**6),
    st.lists(st.floats(0, 1), min_size=1, max_size=9),
)
def test_gamma_stays_within_its_bounds(least, more, ema, vocab, shares):
    policy = egag(least, least + more, ema, vocab)
    for share in shares:
        choice = policy.choose(share * math.log(vocab))
        assert least <= choice.gamma <= least + more
        assert choice.entropy == pytest.approx(share)
        if not ema:
            assert choice.gamma == choice.raw


def test_gamma_min_0_lets_a_step_draft_nothing():
    assert egag(0, 4, 0.0, 50).choose(math.log(50)).gamma == 0


def test_settings_choose_the_policy():
    fixed = GammaPolicy(DrafterSettings(DRAFT, gamma=5), 100)
    assert not fixed.reads_entropy
    assert [fixed.choose(entropy).gamma for entropy in (0.0, 4.0)] == [5, 5]
    guided = GammaPolicy(DrafterSettings(DRAFT, gamma=5, egag=True), 100)
    assert guided.reads_entropy
    assert guided.choose(0.0).gamma == 5  # gamma_max is gamma where it is not given
    assert guided.choose(math.log(100)).gamma == 1
    further = DrafterSettings(DRAFT, gamma=5, egag=True, gamma_min=0, gamma_max=7)
    assert GammaPolicy(further, 100).choose(0.0).gamma == 7


def test_totals_of_nothing_have_no_means_and_divide_by_no_zero():
    totals = DraftTotals()
    assert (totals.mean_gamma, totals.mean_entropy) == (None, None)
    totals.add(DraftStep(GammaPolicy(DrafterSettings(DRAFT, 4), 10).choose(), 4, 1))
    assert (totals.mean_gamma, totals.mean_entropy) == (4.0, None)


def test_totals_give_means_over_steps():
    totals, policy = DraftTotals(), egag(1, 4, 0.0, 10)
    for share, accepted in ((0.0, 4), (0.5, 1)):
        choice = policy.choose(share * math.log(10))
        totals.add(DraftStep(choice, choice.gamma, accepted))
    assert (totals.steps, totals.drafted, totals.accepted) == (2, 6, 5)
    assert totals.mean_gamma == 3.0
    assert totals.mean_entropy == pytest.approx(0.25)


@examples(40)
@given(st.integers(0, 999), st.integers(1, 7), st.floats(0, 1.2))
def test_i11_equal_bounds_are_a_fixed_gamma_step_by_step(salt, gamma, heat):
    scores, draft = hash_scores(7, salt), hash_scores(7, salt, 2.0)
    asked = [request([1, 5, 2], 30, temperature=heat, seed=salt)]
    bounds = DrafterSettings(DRAFT, egag=True, gamma_min=gamma, gamma_max=gamma, ema=0.5)
    same = [
        decode(scores, draft, 7, asked, chosen)
        for chosen in (DrafterSettings(DRAFT, gamma=gamma), bounds)
    ]
    one, two = ([(s.drafted, s.accepted) for s in d.drafters[0].steps] for d in same)
    assert one == two
    assert same[0].text() == same[1].text()
    assert same[0].draft.fed == same[1].draft.fed


@examples(40)
@given(st.integers(0, 999), guided)
def test_i11_every_step_takes_gamma_forwards_and_at_least_one(salt, chosen):
    scores, draft = hash_scores(7, salt), hash_scores(7, salt + 1)
    done = decode(scores, draft, 7, [request([1, 5, 2], 40)], chosen)
    drafter = done.drafters[0]
    assert done.group.totals.forwards == sum(max(step.drafted, 1) for step in drafter.steps)
    for step in drafter.steps:
        assert chosen.gamma_min <= step.choice.gamma <= chosen.largest_gamma
        assert step.drafted <= step.choice.gamma
        assert 0 <= step.choice.entropy <= 1
    means = done.group.totals
    entropy = sum(step.choice.entropy for step in drafter.steps) / means.steps
    assert means.mean_entropy == pytest.approx(entropy)


def test_entropy_ignores_filters_and_takes_temperature_0_for_1():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0],
                           [9.0, 0.0, 0.0, 0.0]])  # fmt: skip
    weights = [math.exp(x / 0.5) for x in range(4)]
    cold = -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights)
    uniform, plain_one, half, _ = entropies(logits.numpy(), [1.0, 1.0, 0.5, 1.0])
    assert uniform == pytest.approx(math.log(4))
    assert half == pytest.approx(cold)
    assert entropies(logits[1:2].numpy(), [0.0]) == [plain_one]
    assert entropies(logits[3:].numpy(), [1e-9]) == pytest.approx([0.0], abs=1e-6)
