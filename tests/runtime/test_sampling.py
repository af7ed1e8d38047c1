"""Sampling: the law of the drawn tokens, and that no drafter changes a single one of them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from tests.support.sampled import distance, floor, law
from tests.support.tensors import draw, draw_at, probabilities
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.sampling.noise import uniform
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams


def decode(scores, vocab, triple, requests, **options):
    executor, model = toy_executor(
        scores, vocab, LookaheadConfig(*triple), drafter=lookahead_drafter, **options
    )
    return run(executor, requests), model


def test_24_drafts_are_accepted_when_sampling():
    """The equality above is only interesting because steps are saved."""
    _, model = decode(
        hash_scores(4, 1, spread=9.0), 4, (5, 4, 5), [request([0, 1], 100, temperature=0.5)]
    )
    assert len(model.fed) < 85


@pytest.mark.deep(first=1)
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (2, 1.0), (0, 0.8)])
def test_24_exact_law_of_sampled_texts(top_k, top_p):
    """243 texts of 5 tokens against their exact probabilities, decoded with lookahead (3,3,3)."""
    runs, scores = 1500, hash_scores(3, 7)
    params = {"temperature": 0.9, "top_k": top_k, "top_p": top_p}
    requests = [request([0, 1, 2, 0, 1], 5, None, i, seed=i, **params) for i in range(runs)]
    outputs, _ = decode(scores, 3, (3, 3, 3), requests, max_batch_size=16)
    counts = Counter(tuple(tokens_of(answer)) for answer in outputs.values())
    exact = law(scores, [0, 1, 2, 0, 1], 5, SamplingParams(**params))
    assert set(counts) <= set(exact)
    assert distance(counts, exact, runs) < 1.2 * floor(exact, runs)
    assert distance(Counter({max(exact, key=exact.get): runs}), exact, runs) > 3 * floor(
        exact, runs
    )
    assert sum(o[-1].stats.steps for o in outputs.values()) < 4 * runs


def test_23_seeds_give_different_texts_position_by_position():
    scores = hash_scores(6, 2)
    requests = [request([0], 20, None, i, seed=i, temperature=2.0) for i in range(30)]
    outputs, _ = decode(scores, 6, (3, 3, 3), requests, max_batch_size=30)
    assert len({tuple(tokens_of(o)) for o in outputs.values()}) == 30


def test_24_cold_or_top_k_1_equals_greedy():
    scores = hash_scores(6, 3)
    texts = [
        tokens_of(decode(scores, 6, (4, 4, 4), [request([0, 1], 30, **params)])[0][0])
        for params in ({}, {"temperature": 1e-4}, {"temperature": 1.0, "top_k": 1})
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("heat", [1e-3, 1e-30, 5e-324])
def test_24_temperatures_near_zero_give_the_best_token(heat):
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, -1.0]])
    probs = probabilities(logits, SamplingParams(temperature=heat))
    assert probs[0].tolist() == [0.0, 1.0, 0.0]
    assert probs[1].tolist() == [0.5, 0.5, 0.0]


def test_noise_is_uniform_and_depends_on_seed_and_position():
    noise = [uniform(seed, position) for seed in range(60) for position in range(60)]
    assert len(set(noise)) == 3600
    assert 0.0 <= min(noise) < 0.01
    assert 0.99 < max(noise) < 1.0
    even = dict.fromkeys(range(10), 0.1)
    assert distance(Counter(int(10 * n) for n in noise), even, 3600) < 1.2 * floor(even, 3600)


@given(
    st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True),
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.sampled_from([0.1, 0.7, 1.0, 2.5]),
)
def test_filters_are_those_of_transformers_and_apply_after_temperature(logits, top_k, top_p, heat):
    rows = torch.tensor([logits], dtype=torch.float64) / 10
    probs = probabilities(rows, SamplingParams(temperature=heat, top_k=top_k, top_p=top_p))
    warpers = [TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)]
    expected = LogitsProcessorList(warpers)(None, rows / heat).softmax(-1)
    torch.testing.assert_close(probs, expected)


def test_a_nucleus_of_thousands_ends_among_equal_logits_by_their_ids():
    logits = torch.zeros(2, 4000)
    logits[1, 3000] = 12.0  # this row's nucleus is one token
    probs = probabilities(logits, SamplingParams(temperature=1.0, top_p=0.75))
    assert probs[0].nonzero()[:, 0].tolist() == list(range(3000))
    assert probs[1].nonzero()[:, 0].tolist() == [3000]


def test_zero_probability_tokens_are_never_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).repeat(500, 1)
    drawn = draw(logits, SamplingParams(temperature=1.0, seed=1), range(500))
    assert set(drawn.tolist()) == {1, 3}


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 30, "top_p": 0.9}], ids=str
)
@pytest.mark.parametrize("vocab", [5, 2048])
def test_rows_of_many_requests_in_one_call_draw_what_each_draws_alone(filters, vocab):
    logits = torch.randn(12, vocab, generator=torch.Generator().manual_seed(4)) * 3
    params = [SamplingParams(8, 0.7, seed=seed, **filters) for seed in range(12)]
    noise = [uniform(one.seed, 40 + row) for row, one in enumerate(params)]
    together = draw_at(logits, params[0], noise)
    alone = [draw(logits[row : row + 1], one, [40 + row]) for row, one in enumerate(params)]
    assert together.tolist() == torch.cat(alone).tolist()
    whole = probabilities(logits, params[0])
    rows = [probabilities(logits[row : row + 1], params[0]) for row in range(12)]
    assert torch.equal(whole, torch.cat(rows))
