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
from tests.support.toys import (
    greedy_scores,
    hash_rule,
    hash_scores,
    plain,
    request,
    run,
    tokens_of,
    toy_executor,
)
from trtla import LLM
from trtla.runtime.drafters.lookup import NgramDrafter, NgramStorage
from trtla.runtime.sampling.draw import probabilities
from trtla.runtime.sampling.predict import top_tokens
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
def test_i1_i6_i7_i8_greedy_text_counters_length_and_end(case, own, end_ids):
    rule, vocab, prompt, _, count, _ = case
    assert_within_limits(rule, vocab, prompt, count, own.gamma, ngram(own, vocab), end_ids)


@pytest.mark.parametrize("gamma", range(1, 9))
@pytest.mark.parametrize("count", range(1, 7))
def test_i7_every_small_length(count, gamma):
    """Nothing drafted at all is no division by zero either."""
    own = replace(NGRAM, gamma=gamma, stop_if_unknown=False)
    assert_within_limits(lambda s: s[-1], 5, [3, 3, 3], count, gamma, ngram(own, 5))
    executor, _ = toy_executor(
        greedy_scores(lambda s: 1, 5), 5, AUTOREGRESSIVE, drafter=ngram(own, 5)
    )
    stats = run(executor, [request([1], count)])[0][-1].stats
    assert stats.tokens_per_step >= 1.0
    assert (stats.drafted == 0) == (count <= 2)


@examples(60)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4),
    chosen,
    st.booleans(),
    st.sampled_from([0.3, 0.8, 1.5]),
    st.sampled_from([0, 2, 4]),
    st.sampled_from([1.0, 0.8]),
    st.integers(0, 999),
)
def test_i2_sampled_texts_of_a_batch_are_those_of_plain_decoding(
    prompts, own, shared, heat, top_k, top_p, salt
):
    """The target's one draw a position is compared and emitted: no bias, whatever is drafted."""
    scores = hash_scores(6, salt)
    asked = [
        request(prompt, 25, None, i, temperature=heat * (i != 1), seed=salt + i, top_k=top_k,
                top_p=top_p)
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    storage = NgramStorage(own.ngram_order, own.ngram_kind, 50) if shared else None
    together, _ = toy_executor(scores, 6, AUTOREGRESSIVE, drafter=ngram(own, 6, storage))
    outputs = run(together, asked)
    for one in asked:
        alone, _ = toy_executor(scores, 6, AUTOREGRESSIVE)
        assert tokens_of(outputs[one.request_id]) == tokens_of(run(alone, [one])[one.request_id])


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
    executor, _ = toy_executor(
        greedy_scores(lambda s: period[len(s) % 12], 20), 20, AUTOREGRESSIVE,
        drafter=ngram(own, 20),
    )  # fmt: skip
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


@examples(60)
@given(cases(), chosen)
def test_i13_never_more_forwards_than_plain_decoding(case, own):
    rule, vocab, prompt, _, count, _ = case
    executor, model = toy_executor(
        greedy_scores(rule, vocab), vocab, AUTOREGRESSIVE, drafter=ngram(own, vocab)
    )
    run(executor, [request(prompt, count)])
    assert len(model.fed) <= count


def test_the_earliest_end_token_of_the_text_counts_not_the_first_listed():
    cycle = lambda s: (s[-1] + 1) % 8  # noqa: E731
    executor, _ = toy_executor(greedy_scores(cycle, 8), 8, AUTOREGRESSIVE, drafter=ngram(NGRAM, 8))
    prompt = [*range(8), 0]
    outputs = run(executor, [request(prompt, 30, end_ids=[5, 3])])[0]
    assert tokens_of(outputs) == [1, 2, 3]
    assert outputs[-1].stats.steps == 1  # the end token was inside the draft


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
        row = torch.tensor([scores(seen)], dtype=torch.float64)
        return row.topk(own.top_k_filler).indices[0].tolist()

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
        executor, _ = toy_executor(
            greedy_scores(rule, 300), 300, AUTOREGRESSIVE, drafter=kept(own, 300, drafters)
        )
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


def test_shared_counts_help_the_next_request_and_change_no_text():
    rule = hash_rule(11, 6, 2)
    steps = {}
    for shared in (True, False):
        storage = NgramStorage(3) if shared else None
        executor, _ = toy_executor(
            greedy_scores(rule, 11), 11, AUTOREGRESSIVE, drafter=ngram(NGRAM, 11, storage)
        )
        outputs = [run(executor, [request([1, 2, 3], 60, None, i)])[i] for i in range(2)]
        assert [tokens_of(each) for each in outputs] == [plain(rule, [1, 2, 3], 60)] * 2
        steps[shared] = [each[-1].stats.steps for each in outputs]
    assert steps[True][0] == steps[False][0] == steps[False][1]
    assert steps[True][1] < steps[False][1]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("heat", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["basic", "onelevel"])
def test_a_real_model_says_the_same(monkeypatch, compiled, heat, kind):
    own = replace(NGRAM, ngram_kind=kind, ngram_order=2)
    real_model_says_the_same(monkeypatch, compiled, heat, ngram(own, 101))


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


def test_the_shipped_model_drafts_by_settings_in_one_batch(tiny_llama):
    own = [
        DrafterSettings(("none",)),
        NGRAM,
        replace(NGRAM, ngram_kind="onelevel", ngram_order=4, top_k_filler=1),
        replace(NGRAM, reset_in_between=False, stop_if_unknown=False),
        replace(NGRAM, reset_in_between=False, gamma=8),
        DrafterSettings(("prompt-lookup",)),
    ]
    prompts = ["One, two, three, one, two,"] * len(own)
    params = [SamplingParams(60, 0.8 * (i % 2), top_p=0.9, seed=5) for i in range(2)]
    with LLM(tiny_llama, dtype="float32") as llm:
        plain_texts = [llm.generate(prompts[0], each, drafter=own[0])[0] for each in params]
        for each, expected in zip(params, plain_texts, strict=True):
            drafted = llm.generate(prompts, each, drafter=own)
            assert all(text.output_ids == expected.output_ids for text in drafted)
            assert [text.stats.drafted > 0 for text in drafted] == [False] + [True] * 5
            assert [text.stats.accepted > 0 for text in drafted] == [False] + [True] * 5
