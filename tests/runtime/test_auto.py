"""Lookahead `auto`: the text is plain decoding's, and each step feeds what pays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.runtime.test_properties import cases, steps_of
from tests.toys import greedy_scores, hash_rule, plain, request, run, tokens_of, toy_executor
from trtla import LLM, LookaheadConfig, SamplingParams, UsageError
from trtla.runtime.auto.acceptance import Acceptance
from trtla.runtime.auto.controller import NOTHING
from trtla.runtime.auto.policy import AutoPolicy, WindowBudget
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NO_DRAFT, Guess, NoDrafter, StepLimit
from trtla.runtime.drafters.lookahead import LookaheadDrafter, lookahead_drafter, random_from_prompt

SEVEN = LookaheadConfig(7, 7, 7)
FLAT = CostTable.of([(1, 0.01), (512, 0.01)])
COSTLY = CostTable.of([(1, 0.01), (512, 5.12)])
CPU = CostTable.of([(1, 0.0013), (2, 0.002), (8, 0.003), (32, 0.0058), (128, 0.017)])
tables = st.sampled_from([FLAT, COSTLY, CPU])
EARLIER = {"costs": CPU, "drafter": lookahead_drafter}


def decode(rule, vocab, triple, requests, **options):
    options = {**EARLIER, **options}
    executor, model = toy_executor(
        greedy_scores(rule, vocab), vocab, LookaheadConfig(*triple), **options
    )
    return run(executor, requests), model, executor


@examples(120)
@given(cases(), tables)
def test_the_text_is_plain_decodings_and_the_budget_holds(case, table):
    rule, vocab, prompt, triple, count, seed = case
    asked = [request(prompt, count, seed=seed, adaptive=True)]
    outputs, model, _ = decode(rule, vocab, triple, asked, costs=table)
    stats, config = outputs[0][-1].stats, LookaheadConfig(*triple)
    assert tokens_of(outputs[0]) == plain(rule, prompt, count)
    assert all(1 <= length <= config.ngram_size for length in steps_of(outputs[0]))
    assert all(fed <= config.max_decoding_tokens for fed in model.fed[1:])
    assert stats.fed == sum(model.fed)
    assert 0 <= stats.accepted <= stats.drafted
    assert stats.lookahead == config


@examples(40)
@given(st.lists(cases(), min_size=2, max_size=6), st.integers(1, 4), tables, st.randoms())
def test_mixed_batches_of_fixed_and_adaptive_requests(several, batch_size, table, order):
    """Texts are their own; fixed requests keep the very steps that they have alone."""
    rule, vocab, server = several[0][0], 11, (8, 7, 8)
    requests = [
        request(prompt, count, triple, index, seed=seed, adaptive=index % 2 == 0)
        for index, (_, _, prompt, triple, count, seed) in enumerate(several)
    ]
    solo = {
        one.request_id: decode(rule, vocab, server, [replace(one, adaptive=False)])[0][
            one.request_id
        ]
        for one in requests
    }
    order.shuffle(requests)
    outputs, _, _ = decode(rule, vocab, server, requests, max_batch_size=batch_size, costs=table)
    for one in requests:
        found, expected = outputs[one.request_id], solo[one.request_id]
        assert tokens_of(found) == tokens_of(expected)
        if not one.adaptive:
            assert steps_of(found) == steps_of(expected)


@pytest.fixture(scope="module")
def llm(tiny_llama, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with LLM(tiny_llama, lookahead="auto", dtype="float32", max_batch_size=4) as opened:
            yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_real_model_says_the_same(llm, temperature):
    prompts = ["def read(path):\n    ", "class Queue:\n    def ", "import os\n"]
    params = SamplingParams(max_output_len=48, temperature=temperature, seed=3)
    auto = llm.generate(prompts, params)
    expected = llm.generate(prompts, params, LookaheadConfig(1, 1, 0))
    assert [c.output_ids for c in auto] == [c.output_ids for c in expected]
    assert llm.generate(prompts[0], params, "auto")[0].output_ids == expected[0].output_ids
    assert [c.stats.lookahead for c in auto] == [SEVEN] * 3
    assert sum(c.stats.fed - len(c.input_ids) for c in expected) == 3 * 47
    assert sum(c.stats.accepted for c in expected) == 0


def test_executors_of_fixed_triples_refuse_it():
    executor, _ = toy_executor(greedy_scores(lambda s: 0, 2), 2, LookaheadConfig(2, 2, 1))
    executor._limits = replace(executor.limits, fixed_triples=True)
    with pytest.raises(UsageError, match="auto, but TensorRT-LLM feeds a request's triple"):
        executor.submit(request([0], 3, adaptive=True))


class Guesses(NoDrafter):
    """A drafter whose guesses are set by hand."""

    lazy_pooling = False

    def __init__(self, guesses=()):
        self.found = list(guesses)

    def guesses(self):
        return self.found

    def observe(self, greedy, committed):
        """Hand-set guesses do not change."""


def long_known(number=7, context=3):
    return [Guess((i, 1, 2, 3, 4, 5), context) for i in range(number)]


def taught(table, accepted, guesses, steps=60):
    """A policy and its controller after steps whose best guess matched `accepted` tokens."""
    policy = AutoPolicy(table, clock=lambda: 0.0)
    text = []
    controller = policy.join(SEVEN, Guesses(guesses), text)
    for _ in range(steps):
        policy.plan([controller])
        best = guesses[0].tokens[:accepted]
        text += [*best, 99, 99, 99, 99, 99, 99]
    policy.plan([controller])
    return controller


def test_a_costly_table_gives_plain_steps():
    assert taught(COSTLY, 0, long_known()).limit is NOTHING
    assert taught(COSTLY, 1, long_known(7, 1), steps=5).limit.guess_lengths[1:] in ((), (0,) * 6)


def test_a_flat_table_gives_whole_guesses():
    limit = taught(FLAT, 6, long_known(1)).limit
    assert limit.guess_lengths == (6,)
    untaught = AutoPolicy(FLAT)
    controller = untaught.join(SEVEN, Guesses(long_known()), [])
    untaught.plan([controller])
    assert controller.limit.guess_lengths == (6,) * 7


def test_high_acceptance_keeps_feeding_and_low_stops():
    assert taught(CPU, 6, long_known(1)).limit.guess_lengths == (6,)
    assert 1 <= taught(CPU, 2, long_known(1)).limit.guess_lengths[0] <= 3
    assert taught(CPU, 0, long_known(1)).limit is NOTHING


def test_chances_follow_what_was_seen():
    own, text = Acceptance.prior(3).child(), []
    for _ in range(80):
        own.watch([Guess((1, 2, 3), 2)], len(text))
        text += [1, 2, 9]
        assert own.saw(text) == 2
    first, second, third = own.chances(2, 0)
    assert first > 0.9
    assert second > 0.9
    assert third < 0.1


def drive(text, prompt, table=CPU):
    """(fed drafts, tokens, steps) per step of a known text under the policy."""
    policy = AutoPolicy(table, clock=lambda: 0.0)
    drafter = LookaheadDrafter(SEVEN, prompt, random_from_prompt(0))
    output = text[:1]
    controller, place, steps = policy.join(SEVEN, drafter, output), 1, []
    while place < len(text):
        fed = policy.plan([controller])
        draft = drafter.propose(controller.limit) if fed else NO_DRAFT
        node, accepted = 0, 0
        while place + accepted < len(text):
            token = text[place + accepted]
            node = next(
                (n for n in draft.candidates
                 if draft.parents[n - 1] == node and draft.tokens[n - 1] == token), 0
            )  # fmt: skip
            if not node:
                break
            accepted += 1
        new = text[place : place + accepted + 1]
        output += new
        if draft.read:
            controller.learn([0] * len(draft.read))
        policy.record(draft.size, 1, 1, len(new), table.seconds(draft.size))
        steps.append((draft.size - 1, len(new)))
        place += len(new)
    return steps


def test_text_that_never_repeats_costs_next_to_nothing():
    rng = random.Random(3)
    text = [rng.randrange(40) for _ in range(201)]  # keys come again, what follows them does not
    steps = drive(text, [rng.randrange(40) for _ in range(60)])
    assert len(steps) > 180
    assert sum(fed for fed, _ in steps[20:]) < 0.03 * len(steps)


def test_drafts_start_again_when_the_text_becomes_repetitive():
    rng = random.Random(4)
    text = [rng.randrange(60) for _ in range(150)] + list(range(20)) * 6
    steps = drive(text, [1, 2, 3])
    assert sum(new for _, new in steps[-10:]) >= 40
    assert len(steps) < 150 + 60


def test_limits_cut_drafts_and_the_window_waits():
    drafter = LookaheadDrafter(
        LookaheadConfig(3, 4, 4), [5, 1, 2, 3, 5, 1, 7, 8, 5], lambda p, n: p[:n]
    )
    drafter.observe((), [1])
    assert drafter.guesses()[0].tokens == (7, 8, 5)  # the youngest of equal contexts
    assert drafter.propose(StepLimit()).size == 1
    cut = drafter.propose(StepLimit((2, 1)))
    assert [cut.tokens[n - 1] for n in cut.candidates] == [7, 8, 2]
    assert cut.read == ()
    before = drafter.propose()
    drafter.observe((), [7])  # a step without the window
    after = drafter.propose(StepLimit((), with_window=True))
    assert after.tokens == before.tokens[: before.first_candidate - 1]
    assert len(after.read) == 3


def test_equal_beginnings_are_fed_once():
    drafter = LookaheadDrafter(
        LookaheadConfig(2, 4, 4), [1, 2, 3, 4, 1, 2, 3, 9, 1], lambda p, n: p[:n]
    )
    draft = drafter.propose(StepLimit((2, 3)))
    assert [draft.tokens[n - 1] for n in draft.candidates] == [2, 3, 4]


def test_the_longest_context_comes_first():
    prompt = [7, 1, 2, 3, 4, 8, 1, 2, 5, 6, 7]
    drafter = LookaheadDrafter(LookaheadConfig(2, 4, 4), prompt, lambda p, n: p[:n])
    drafter.observe((), [1])
    drafter.observe((), [2])
    found = [(g.tokens, g.context) for g in drafter.guesses()]
    assert found[0] == ((3, 4, 8), 3)
    assert found[1] == ((5, 6, 7), 2)


def test_seeds_and_steps_are_deterministic_for_the_same_costs():
    rule = hash_rule(5, 2)
    asked = [request([1, 2, 3], 60, adaptive=True)]
    first, second = (decode(rule, 5, (5, 5, 5), asked, costs=FLAT)[0][0] for _ in range(2))
    assert tokens_of(first) == tokens_of(second)


def test_a_window_that_costs_nothing_is_fed_and_a_costly_one_tried_rarely():
    free = AutoPolicy(FLAT)
    controller = free.join(SEVEN, Guesses(), [])
    free.plan([controller])
    assert controller.limit == StepLimit((), with_window=True)
    dear = AutoPolicy(CostTable.of([(1, 0.01), (42, 0.02)]), clock=lambda: 0.0)
    text, fed = [], []
    controller = dear.join(SEVEN, Guesses(), text)
    for _ in range(10_000):
        fed.append(dear.plan([controller]) and controller.limit.with_window)
        text.append(1)
    assert sum(fed) == 24 * 2  # half a percent of the time
    assert not any(fed[:4000])


def test_a_window_is_judged_by_what_only_it_brings():
    budget = WindowBudget()
    assert budget.pays(0.1, 1.0)
    for _ in range(200):
        budget.saw(0)
    assert not budget.pays(0.1, 1.0)
    for _ in range(200):
        budget.saw(1)
    assert budget.pays(0.5, 1.0)


def test_guesses_of_the_window_are_told_apart():
    rule = hash_rule(5, 2, 1)
    drafter = LookaheadDrafter(LookaheadConfig(4, 3, 40), [1, 2, 3], lambda p, n: [0] * n)
    drafter.lazy_pooling = True
    text = [1, 2, 3, 4]
    drafter.observe((), [4])
    seen = set()
    for _ in range(30):
        draft = drafter.propose(StepLimit((), with_window=True))
        text.append(rule(text))
        drafter.observe([(7 * n) % 5 for n in draft.read], text[-1:])
        grams = {tuple(text[i : i + 3]) for i in range(len(text) - 2)}
        for guess in drafter.guesses():
            seen.add(guess.from_window)
            assert guess.from_window != ((text[-1], *guess.tokens) in grams)
    assert seen == {True, False}


class Listener(Guesses):
    """Keeps what it was told."""

    def __init__(self, guesses):
        super().__init__(guesses)
        self.told = []

    def observe(self, greedy, committed):
        self.told.append(list(committed))


def test_sequences_sleep_together_and_their_drafters_are_told_later():
    policy, text = AutoPolicy(COSTLY, clock=lambda: 0.0), []
    drafters = [Listener(long_known()) for _ in range(4)]
    controllers = [policy.join(SEVEN, drafter, text) for drafter in drafters]
    slept = 0
    for step in range(400):
        if policy.idle:
            policy.skip()
            slept += 1
        else:
            policy.plan(controllers)
        text.append(100 + step)
    assert slept > 300
    assert len({len(drafter.told) for drafter in drafters}) == 1
    for drafter in drafters:
        told = [token for tokens in drafter.told for token in tokens]
        assert told == text[: len(told)]
        assert len(told) > 400 - 64


def test_a_sequence_that_begins_wakes_the_others():
    policy, text = AutoPolicy(COSTLY, clock=lambda: 0.0), []
    controller = policy.join(SEVEN, Guesses(long_known()), text)
    while not policy.idle:
        policy.plan([controller])
        text.append(99)
    policy.reset_backoff()
    assert not policy.idle


@pytest.mark.parametrize("how", ["cancelled", "finished"])
def test_requests_that_end_before_costs_are_known_leave_nothing_behind(how):
    """Costs are asked for again with a later request: those that have ended are no longer there."""
    executor, _ = toy_executor(greedy_scores(lambda s: 0, 2), 2, LookaheadConfig(2, 2, 1))
    known = executor._cost_source
    executor._cost_source = lambda *_: None
    for number in range(3):
        executor.submit(request([0], 40 if how == "cancelled" else 2, None, number, adaptive=True))
    executor.poll()
    for number in range(3):
        executor.cancel(number)
    while executor.poll():
        pass
    executor._cost_source = known
    run(executor, [request([0], 3, None, 7, adaptive=True)])
    assert executor._adaptive._waiting == []
    assert executor._adaptive._controllers == {}
