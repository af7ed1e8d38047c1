"""NASD behind the real step loop: the text is plain decoding's, the counts are those of its rules.

The invariants are those of the table in docs/algorithm.md: I1, I2, I6, I7, I8 and I13.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.drafted import (
    assert_within_limits,
    one_per_request,
    real_model_says_the_same,
)
from tests.support.examples import examples
from tests.support.tensors import probabilities, top_tokens
from tests.support.toys import hash_rule, hash_scores, request, ruled, run, tokens_of, toy_executor
from trtla.runtime.drafters.lookup import NgramDrafter, NgramStorage
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import SamplingParams

NGRAM = DrafterSettings(("ngram",))
chosen = st.builds(
    DrafterSettings,
    drafter=st.just(("ngram",)),
    gamma=st.integers(1, 8),
    ngram_kind=st.sampled_from(["basic", "onelevel"]),
    ngram_order=st.integers(2, 5),
    top_k_filler=st.integers(1, 5),
    stop_if_unknown=st.booleans(),
)


def ngram(settings, vocab, storage=None):
    return one_per_request(lambda request: NgramDrafter(settings, request, vocab, storage))


def kept(settings, vocab, drafters):
    """As `ngram`, and every drafter is kept for a look at it."""

    def make(request):
        drafters.append(NgramDrafter(settings, request, vocab))
        return drafters[-1]

    return one_per_request(make)


@examples(150)
@given(cases(), chosen, st.sets(st.integers(0, 10), max_size=3))
def test_i1_i6_i7_i8_i13_greedy_text_counters_length_and_end(case, own, end_ids):
    """Of every step at least a token: never more forwards than plain decoding."""
    rule, vocab, prompt, _, count, _ = case
    assert_within_limits(rule, vocab, prompt, count, own.gamma, ngram(own, vocab), end_ids)


def test_i2_a_drafted_token_is_emitted_as_often_as_the_target_says():
    """UP draws again after a mismatch: p becomes p + p(1 - p)."""
    scores, own = (lambda text: [1.0, 0.0, 0.5]), replace(NGRAM, stop_if_unknown=False)
    executor, _ = toy_executor(scores, 3, AUTOREGRESSIVE, drafter=ngram(own, 3))
    asked = [request([1, 1, 1], 100, None, i, temperature=1.0, seed=i) for i in range(40)]
    outputs = run(executor, asked)
    seen = Counter(token for each in outputs.values() for token in tokens_of(each))
    expected = torch.tensor([1.0, 0.0, 0.5]).softmax(-1).tolist()
    assert [seen[token] / 4000 for token in range(3)] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("kind", ["basic", "onelevel"])
def test_i13_a_repeated_prompt_is_accepted_after_one_period(order, kind):
    own = replace(NGRAM, ngram_order=order, ngram_kind=kind)
    period = random.Random(1).sample(range(20), 12)
    executor, _ = ruled(lambda s: period[len(s) % 12], 20, AUTOREGRESSIVE, drafter=ngram(own, 20))
    executor.submit(request(period, 120))
    text, first = [], (0, 0)
    while step := executor.poll():
        text += step[0].new_tokens
        stats = step[0].stats
        if len(text) < 12:
            first = stats.drafted, stats.accepted
    assert text == period * 10
    assert (stats.accepted - first[1]) / (stats.drafted - first[0]) > 0.9
    assert stats.tokens_per_step > 4


def counts_by_rule(prompt, text, tops, order, kind, filler):
    """Section 7.2 written down directly: prompt, first token, then emitted and most probable."""
    events = [(prompt[:end], [prompt[end]]) for end in range(1, len(prompt))]
    for place, token in enumerate(text):
        top = tops([*prompt, *text[:place]])[:filler] if place and filler > 1 else []
        events.append(([*prompt, *text[:place]], [token, *top]))
    storage = NgramStorage(order, kind)
    for sequence, tokens in events:
        storage.update(sequence, tokens)
    return storage


@examples(60)
@given(cases(), chosen, st.sampled_from([0.0, 0.7]))
def test_update_rules_filler_1_counts_what_was_emitted_only(case, own, heat):
    _, _, prompt, _, count, salt = case
    vocab, scores = 11, hash_scores(11, salt)
    drafters = []
    executor, _ = toy_executor(scores, vocab, AUTOREGRESSIVE, drafter=kept(own, vocab, drafters))
    text = tokens_of(run(executor, [request(prompt, count, temperature=heat)])[0])

    def tops(seen):
        row = scores(seen)  # equal ones by their ids
        return sorted(range(vocab), key=lambda token: (-row[token], token))[: own.top_k_filler]

    expected = counts_by_rule(prompt, text, tops, own.ngram_order, own.ngram_kind, own.top_k_filler)
    storage, whole = drafters[0].storage, [*prompt, *text]
    assert len(storage) == len(expected)
    for end in range(1, len(whole) + 1):
        for size in range(1, own.ngram_order):
            for token in range(vocab):
                gram = [*whole[max(0, end - size) : end], token]
                assert storage.count(gram) == expected.count(gram)


def test_an_emitted_token_among_the_fillers_counts_twice():
    drafter = NgramDrafter(NGRAM, request([1, 2], 9), 9)
    drafter.observe((), (3,))
    assert drafter.ranks == 3
    drafter.ranked([[4, 5, 6]])
    drafter.observe((), (4,))
    counts = [drafter.storage.count((2, 3, token)) for token in (4, 5, 6, 7)]
    assert counts == [2, 1, 1, 0]
    drafter.observe((), (5,))  # what was ranked belonged to the step before
    assert [drafter.storage.count((3, 4, token)) for token in (4, 5)] == [0, 1]


@examples(100)
@given(
    st.lists(st.permutations(range(-8, 9)), min_size=1, max_size=4),  # ties may go either way
    st.integers(1, 9),
    st.sampled_from([0.0, 1e-30, 0.4, 1.0, 3.0]),
    st.integers(0, 8),
    st.sampled_from([1.0, 0.9, 0.5, 0.01]),
)
def test_fillers_are_the_most_probable_tokens_and_none_of_probability_0(
    rows, count, heat, top_k, top_p
):
    logits = torch.tensor(rows, dtype=torch.float64)[:, :7] / 3
    params = SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    for row, tokens in zip(logits, top_tokens(logits, count, params), strict=True):
        assert len(set(tokens)) == len(tokens) <= min(count, 7, top_k or 7)
        assert row[tokens].tolist() == row.topk(len(tokens)).values.tolist()
        if heat:
            probs = probabilities(row[None], params)[0]
            known = (probs > 1e-9).sum().item()
            assert min(count, known, top_k or 7) <= len(tokens)
            assert (probs[tokens] > 0).all()
        else:
            assert len(tokens) == min(count, 7, top_k or 7)


def test_random_tokens_come_from_the_requests_own_generator():
    own, rule = replace(NGRAM, stop_if_unknown=False), hash_rule(300, 6)
    steps = {}

    def drafts(seed, beside):
        drafters = []
        executor, _ = ruled(rule, 300, AUTOREGRESSIVE, drafter=kept(own, 300, drafters))
        asked = [request([1, 2], 20, None, i, seed=seed + 7 * i) for i in range(1 + beside)]
        steps[seed] = run(executor, asked)[0][-1].stats
        return drafters[0]._random.getstate()

    before = random.getstate(), torch.get_rng_state().tolist()
    states = [drafts(0, 0), drafts(0, 2), drafts(1, 0)]
    assert states[0] == states[1] != states[2]
    assert steps[0].drafted > 0
    assert before == (random.getstate(), torch.get_rng_state().tolist())


def test_unknown_contexts_end_a_draft_or_are_filled():
    asked = request([1, 2, 3, 4, 1], 20)
    onelevel = replace(NGRAM, ngram_kind="onelevel")
    stopping, filling = (
        NgramDrafter(replace(onelevel, stop_if_unknown=stops), asked, 9) for stops in (True, False)
    )
    for drafter in (stopping, filling):
        drafter.observe((), (2,))
        assert drafter.propose().tokens[:3] == (3, 4, 1)
        drafter.observe((), (9,))
    assert stopping.propose().tokens == ()
    drafted = filling.propose().tokens
    assert len(drafted) == 4
    assert set(drafted) <= set(range(9))


@pytest.mark.parametrize("compiled", [True, False])
def test_the_most_probable_tokens_of_a_real_model_begin_with_its_greedy_choice(
    monkeypatch, compiled
):
    class Checked(NgramDrafter):
        seen = 0

        def ranked(self, tops):
            self.tops = tops
            super().ranked(tops)

        def observe(self, greedy, committed):
            if hasattr(self, "tops"):
                assert [top[0] for top in self.tops] == list(committed)
                assert all(len(set(top)) == 3 for top in self.tops)
                Checked.seen += len(committed)
            super().observe(greedy, committed)

    factory = one_per_request(lambda request: Checked(NGRAM, request, 101))
    real_model_says_the_same(monkeypatch, compiled, 0.0, factory)
    assert Checked.seen == 3 * 39
