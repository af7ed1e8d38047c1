"""Properties of lookahead decoding that hold for every model, prompt, triple and order of arrival.

The numbers in the test names are those of the table in docs/algorithm.md.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases, steps_of, triples
from tests.support.examples import examples
from tests.support.toys import hash_rule, plain, request, ruled, run, tokens_of, traced_drafter
from trtla.runtime.draft import Draft, depths
from trtla.runtime.drafters.lookahead import LookaheadDrafter, lookahead_drafter, new_window
from trtla.settings.drafting import DraftOptions
from trtla.settings.lookahead import LookaheadConfig


def decode(rule, vocab, triple, requests, **options):
    executor, model = ruled(rule, vocab, triple, **options)
    return run(executor, requests), model, executor


@examples(200)
@given(cases(), st.sampled_from([lookahead_drafter, traced_drafter]))
def test_01_02_03_06_25_exact_bounded_within_budget_and_counters_add_up(case, drafter):
    rule, vocab, prompt, triple, count, seed = case
    outputs, model, executor = decode(
        rule, vocab, triple, [request(prompt, count, seed=seed)], drafter=drafter
    )
    config, stats, total = LookaheadConfig(*triple), outputs[0][-1].stats, executor.stats()
    lengths = stats.step_lengths
    assert tokens_of(outputs[0]) == plain(rule, prompt, count)
    assert lengths[0] == 1
    assert [len(o.new_tokens) for o in outputs[0]] == lengths
    assert sum(lengths) == count == total.new_tokens
    assert all(1 <= length <= config.ngram_size for length in lengths)
    assert 1 + -(-(count - 1) // config.ngram_size) <= len(lengths) <= count
    assert len(lengths) == stats.steps + 1 == len(model.fed)
    assert all(fed <= config.max_decoding_tokens for fed in model.fed[1:])
    assert stats.fed == sum(model.fed) == total.fed
    # The last step may end before the token that the target drew.
    assert count - 1 - stats.steps <= stats.accepted <= count - stats.steps
    assert 0 <= stats.accepted <= stats.drafted
    if drafter is traced_drafter:  # the default merges candidates, and accepts of the window
        assert stats.drafted <= triple[2] * (triple[1] - 1) * stats.steps
    assert [o.finish_reason for o in outputs[0]] == [None] * stats.steps + ["length"]


def walk(config, prompt, steps, rule):
    """The reference fed with the rule's own predictions: (draft, text before, drafter) per step."""
    reference = DraftOptions(reference=True)
    drafter = LookaheadDrafter(config, prompt, new_window(config, prompt, 0), options=reference)
    text = [*prompt, rule(prompt)]
    drafter.observe((), text[-1:])
    for _ in range(steps):
        draft = drafter.propose()
        yield draft, list(text), drafter
        greedy = [rule([*text, *draft.tokens_to(node)]) for node in draft.read]
        text.append(rule(text))
        drafter.observe(greedy, text[-1:])


@examples(80)
@given(triples, st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 9999))
def test_03_04_06_07_shape_of_every_draft(triple, prompt, salt):
    config = LookaheadConfig(*triple)
    w, n, g = triple
    rule = hash_rule(5, 4, salt)
    for step, (draft, _, _) in enumerate(walk(config, prompt, n + 4, rule)):
        assert draft.size <= config.max_decoding_tokens
        depth = depths(draft.parents)
        window, candidates = range(1, draft.first_candidate), draft.candidates
        assert max(depth) <= max(w + n - 3, n - 1)
        # Branches only meet at the input token: no candidate hangs below the window or another
        # branch.
        for node in candidates:
            parent = draft.parents[node - 1]
            assert parent == 0 or (parent >= draft.first_candidate and parent == node - 1)
        assert all(draft.parents[node - 1] < draft.first_candidate for node in window)
        assert len(candidates) % (n - 1) == 0
        assert len(candidates) // (n - 1) <= g
        filled = min(step + 1, n - 1)
        fillers = n - 2 - filled
        cells = filled * w + (fillers if fillers >= 0 else -1)
        assert len(window) == cells
        assert len(draft.read) == w
        if filled == n - 1:  # full: cell (l, j) stands at depth l + j
            expected = [*range(1, w), *(lv + j for lv in range(1, n - 1) for j in range(w))]
            assert [depth[node] for node in window] == expected


@examples(60)
@given(cases())
def test_04_mask_every_row_sees_its_path_once(case):
    """The toy asserts one visible key per position; here: it is the cached text + path."""
    rule, vocab, prompt, triple, count, seed = case
    drafts = []

    def recording(config, request):
        inner = lookahead_drafter(config, request)
        propose = inner.propose
        inner.propose = lambda: drafts.append(propose()) or drafts[-1]
        return inner

    outputs, model, _ = decode(
        rule, vocab, triple, [request(prompt, count, seed=seed)], drafter=recording
    )
    text, committed = list(prompt), [o.new_tokens for o in outputs[0]]
    for draft, new, rows in zip(drafts, committed, model.visible[1:], strict=False):
        text += new
        for node, seen in enumerate(rows):
            assert seen == [*text, *draft.tokens_to(node)]


@examples(60)
@given(triples, st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 9999))
def test_05_guesses_and_window_do_not_interfere(triple, prompt, salt):
    """Without its candidates a draft predicts the same window row and golden token."""
    rule = hash_rule(5, 4, salt)
    for draft, text, _ in walk(LookaheadConfig(*triple), prompt, 8, rule):
        cut = draft.first_candidate - 1
        bare = Draft(draft.tokens[:cut], draft.parents[:cut], draft.first_candidate, draft.read)
        full = [rule([*text, *draft.tokens_to(node)]) for node in (0, *draft.read)]
        assert full == [rule([*text, *bare.tokens_to(node)]) for node in (0, *bare.read)]


@examples(60)
@given(triples, st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 9999))
def test_07_08_harvest_holds_the_targets_predictions(triple, prompt, salt):
    config, rule = LookaheadConfig(*triple), hash_rule(5, 4, salt)
    w, n, _ = triple
    drafter = LookaheadDrafter(config, prompt, new_window(config, prompt, 0))
    text = [*prompt, rule(prompt)]
    drafter.observe((), text[-1:])
    for step in range(n + 4):
        draft = drafter.propose()
        greedy = [rule([*text, *draft.tokens_to(node)]) for node in draft.read]
        ngrams = drafter._window.advance(text[-1], greedy)
        drafter._recent = [*drafter._recent, rule(text)][-(n - 1) :]
        assert len(ngrams) == (w if step >= n - 2 else 0)
        for column, (key, *value) in enumerate(ngrams):
            path = draft.tokens_to(draft.read[column])
            cell = [text[-1], *path]
            assert value[-1] == rule([*text, *path])
            assert [key, *value[:-1]] == cell[column:]
        text.append(rule(text))


@pytest.mark.parametrize("triple", [(7, 7, 7), (3, 4, 2), (2, 2, 1), (1, 5, 3)])
def test_10_only_pool_values_of_the_input_token_are_proposed(triple):
    rule = hash_rule(4, 3)
    for draft, text, drafter in walk(LookaheadConfig(*triple), [0, 1, 2, 3, 1], 30, rule):
        n = triple[1] - 1
        tokens = [draft.tokens[node - 1] for node in draft.candidates]
        proposed = [tuple(tokens[i : i + n]) for i in range(0, len(tokens), n)]
        assert proposed == drafter.pool.lookup(text[-1])


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_11_17_a_constant_text_gives_whole_ngrams(n):
    outputs, _, _ = decode(lambda s: s[-1], 3, (2, n, 2), [request([1] * n, 1 + 5 * n)])
    assert outputs[0][-1].stats.step_lengths == [1] + [n] * 5
    assert tokens_of(outputs[0]) == [1] * (1 + 5 * n)


@examples(40)
@given(cases())
def test_12_cache_equals_the_committed_text(case):
    rule, vocab, prompt, triple, count, seed = case
    executor, _ = ruled(rule, vocab, triple)
    executor.submit(request(prompt, count, seed=seed))
    text = list(prompt)
    while step := executor.poll():
        text += step[0].new_tokens
        if step[0].finish_reason is None:
            sequence = executor._scheduler.next().generation[0]
            assert sequence.num_cached == len(text) - 1
            executor._cache.move_now()  # as the next forward begins
            slots = executor._cache.table(sequence.blocks).slots[: len(text) - 1]
            keys = executor._cache.layer(0)[0][slots, 0]
            assert keys[:, 0].tolist() == text[:-1]
            assert keys[:, 1].tolist() == list(range(len(text) - 1))


@examples(80)
@given(cases(), st.sets(st.integers(0, 10), min_size=1, max_size=3))
def test_13_14_15_end_ids_and_lengths_cut_like_plain_decoding(case, end_ids):
    rule, vocab, prompt, triple, count, seed = case
    text = plain(rule, prompt, count)
    ends = [i for i, token in enumerate(text) if token in end_ids]
    outputs, _, executor = decode(
        rule, vocab, triple, [request(prompt, count, end_ids=sorted(end_ids), seed=seed)]
    )
    expected = text[: ends[0] + 1] if ends else text
    assert tokens_of(outputs[0]) == expected
    assert outputs[0][-1].finish_reason == ("end_id" if ends else "length")
    assert executor.stats().new_tokens == len(expected)


def test_13_nothing_past_the_end_reaches_the_drafter():
    seen = []

    def spying(config, request):
        inner = traced_drafter(config, request)
        observe = inner.observe
        inner.observe = lambda greedy, tokens: (seen.extend(tokens), observe(greedy, tokens))
        return inner

    outputs, _, _ = decode(
        lambda s: (s[-1] + 1) % 5,
        5,
        (3, 5, 3),
        [request([0, 1, 2, 3, 4, 0, 1, 2], 30, end_ids=[1])],
        drafter=spying,
    )
    assert tokens_of(outputs[0]) == seen == [3, 4, 0, 1]


@pytest.mark.parametrize(
    "triple",
    [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 2, 0), (1, 7, 1), (64, 3, 2), (40, 2, 9), (1, 9, 0)],
)
def test_18_19_degenerate_sizes(triple):
    rule = hash_rule(2, 5)
    outputs, model, _ = decode(rule, 2, triple, [request([1, 0], 33)])
    assert tokens_of(outputs[0]) == plain(rule, [1, 0], 33)
    if triple[2] == 0:
        assert len(model.fed) == 33
    if triple[1] == 1:
        assert model.fed == [2] + [1] * 32


@examples(40)
@given(st.lists(cases(), min_size=2, max_size=6), st.integers(1, 4), st.integers(0, 9999))
def test_21_mixed_batches_equal_solo_runs(several, batch_size, order_seed):
    """Requests with own triples join, finish and are replaced; texts and steps stay theirs."""
    rule, vocab = several[0][0], 11
    server = (8, 7, 8)
    requests = [
        request(prompt, count, triple, index, seed=seed)
        for index, (_, _, prompt, triple, count, seed) in enumerate(several)
    ]
    solo = {}
    for one in requests:
        outputs, _, _ = decode(rule, vocab, server, [one], drafter=lookahead_drafter)
        solo[one.request_id] = (
            tokens_of(outputs[one.request_id]),
            steps_of(outputs[one.request_id]),
        )
    random.Random(order_seed).shuffle(requests)
    outputs, model, executor = decode(
        rule,
        vocab,
        server,
        requests,
        drafter=lookahead_drafter,
        max_batch_size=batch_size,
        max_num_tokens=batch_size * LookaheadConfig(*server).max_decoding_tokens + 3,
    )
    for index, expected in solo.items():
        assert (tokens_of(outputs[index]), steps_of(outputs[index])) == expected
    assert executor.stats().max_in_flight <= batch_size
    if batch_size >= len(requests):  # all go together
        assert len(model.fed) == max(len(o[-1].stats.step_lengths) for o in outputs.values())


def test_23_the_seed_changes_steps_only():
    rule = hash_rule(7, 1, 5)
    texts, steps = set(), set()
    for seed in range(12):
        outputs, _, _ = decode(
            rule, 7, (4, 4, 4), [request([1, 2, 3, 4, 5], 60, seed=seed)], drafter=lookahead_drafter
        )
        texts.add(tuple(tokens_of(outputs[0])))
        steps.add(tuple(steps_of(outputs[0])))
    assert len(texts) == 1
    assert len(steps) > 1


def test_25_a_text_that_fills_every_slot():
    """The last steps' drafts reach past max_text_len; they have slots of their own."""
    rule = hash_rule(3, 2)
    server = LookaheadConfig(8, 7, 8)
    executor, _ = ruled(rule, 3, server, max_text_len=64, max_batch_size=1)
    outputs = run(executor, [request([1] * 10, 54)])[0]
    assert tokens_of(outputs) == plain(rule, [1] * 10, 54)


def test_toy_notices_a_wrong_mask(monkeypatch):
    """The toy is worth something only if a mask slip breaks it."""
    from trtla.runtime.models import attention

    right = attention.tree_bias
    monkeypatch.setattr(attention, "tree_bias", lambda parents: right((0,) * len(parents)))
    with pytest.raises(AssertionError, match="positions seen"):
        decode(lambda s: s[-1], 3, (2, 4, 2), [request([1, 1], 9)])


def test_toy_notices_an_unmoved_cache(monkeypatch):
    from trtla.runtime.models.tensor_cache import TensorCache

    monkeypatch.setattr(TensorCache, "move", lambda self, source, target: None)
    rule = hash_rule(3, 2, 1)
    outputs, _, _ = decode(rule, 3, (4, 4, 4), [request([1, 2, 0], 60)])
    assert tokens_of(outputs[0]) != plain(rule, [1, 2, 0], 60)
