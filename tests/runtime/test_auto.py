"""Lookahead `auto`: the text is plain decoding's, and each step feeds the nodes that pay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases, steps_of
from tests.support.examples import examples
from tests.support.toys import hash_rule, plain, request, ruled, run, tokens_of
from trtla import DraftOptions, LookaheadConfig, SamplingParams, UsageError
from trtla.runtime.auto.policy import SourceBudget, TreePolicy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Draft, Drafter
from trtla.runtime.drafters.lookahead import new_window
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.sampling.accept import accept
from trtla.runtime.tree.library import Planner, SharedTrees

SEVEN = LookaheadConfig(7, 7, 7)
FLAT = CostTable.of([(1, 0.01), (512, 0.01)])
COSTLY = CostTable.of([(1, 0.01), (512, 5.12)])
CPU = CostTable.of([(1, 0.0013), (2, 0.002), (8, 0.003), (32, 0.0058), (128, 0.017)])
tables = st.sampled_from([FLAT, COSTLY, CPU])


def decode(rule, vocab, triple, requests, **options):
    options = {"costs": CPU, "options": DraftOptions(), **options}
    executor, model = ruled(rule, vocab, triple, **options)
    return run(executor, requests), model, executor


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


def test_executors_of_fixed_triples_refuse_it():
    executor, _ = ruled(lambda s: 0, 2, (2, 2, 1))
    executor._limits = replace(executor.limits, fixed_triples=True)
    with pytest.raises(UsageError, match="auto, but TensorRT-LLM feeds a request's triple"):
        executor.submit(request([0], 3, adaptive=True))


def drafter_of(prompt, output_len, shared=None, window=None, **more):
    shared = shared or SharedTrees(100)
    sources = ("context", "requests", "expected", "window", "chain")
    tree = shared.tree(prompt, SamplingParams(), sources, True)
    return TreeDrafter(tree, shared, 64, output_len, window, **more)


def drive(text, prompt, table=CPU, drafter=None):
    """(fed drafts, tokens) of each step of a known text under the policy."""
    policy = TreePolicy(StepCosts(table), clock=lambda: 0.0)
    drafter = drafter or drafter_of(prompt, len(text))
    drafter.observe((), text[:1])
    place, steps = 1, []
    while place < len(text):
        policy.plan([drafter], 1, 1000)
        draft = drafter.propose()
        draws, node_tokens = {}, {0: ()} | {n: draft.tokens_to(n) for n in range(1, draft.size)}
        for node, path in node_tokens.items():
            right = tuple(text[place : place + len(path)]) == path
            after = place + len(path)
            draws[node] = text[after] if right and after < len(text) else -2
        new = [token for token in accept(draft, draws)[0] if token != -2]
        drafter._accepted = len(new) - 1
        drafter.observe([0] * len(draft.read), new)
        policy.record(draft.size, 1, 1, len(new), table.seconds(draft.size))
        steps.append((draft.size - 1, len(new)))
        place += len(new)
    return steps


def test_a_costly_table_gives_plain_steps_unless_a_token_is_nearly_certain():
    rng = random.Random(1)
    text = [rng.randrange(90) for _ in range(200)]
    assert sum(fed for fed, _ in drive(text, [1, 2, 3], COSTLY)) < 10


def test_a_flat_table_gives_long_drafts():
    steps = drive(list(range(30)) * 8, [1, 2, 3], FLAT)
    assert max(fed for fed, _ in steps) == 64
    assert len(steps) < 60


def test_text_that_never_repeats_costs_next_to_nothing():
    rng = random.Random(3)
    text = [rng.randrange(40) for _ in range(401)]  # tokens come again, what follows them does not
    steps = drive(text, [rng.randrange(40) for _ in range(60)])
    assert len(steps) > 380
    assert sum(fed for fed, _ in steps[100:]) < 0.1 * len(steps)


def test_drafts_start_again_when_the_text_becomes_repetitive():
    rng = random.Random(4)
    text = [rng.randrange(60) for _ in range(150)] + list(range(20)) * 6
    steps = drive(text, [1, 2, 3])
    assert sum(new for _, new in steps[-10:]) >= 40
    assert len(steps) < 150 + 60


def test_texts_of_other_requests_and_expected_outputs_are_drafted_from():
    text = [(7 * place * place + 3 * place) % 97 for place in range(120)]
    alone = len(drive(text, [1, 2]))
    shared = SharedTrees(100)
    shared.add_text(text)
    assert len(drive(text, [1, 2], drafter=drafter_of([1, 2], 120, shared))) < alone / 2
    told = drafter_of([1, 2], 120)
    told._tree.add_text("expected", text)
    assert len(drive(text, [1, 2], drafter=told)) < alone / 2


@pytest.mark.parametrize("nodes", [0, 3, 20])
def test_a_number_of_nodes_is_fed_whatever_it_costs(nodes):
    asked = [request([1, 2, 3, 1, 2], 60, adaptive=True)]
    more = {"costs": COSTLY, "options": DraftOptions(nodes=nodes)}
    outputs, model, _ = decode(hash_rule(5, 2), 5, (7, 7, 7), asked, **more)
    assert tokens_of(outputs[0]) == plain(hash_rule(5, 2), [1, 2, 3, 1, 2], 60)
    assert max(model.fed[1:]) == 1 + nodes


def test_sources_that_are_switched_off_propose_nothing():
    asked = [request([1, 2, 3, 1, 2, 3, 1], 40, adaptive=True)]
    none = DraftOptions(sources=("requests",), nodes=8)
    outputs, _, _ = decode(hash_rule(5, 2), 5, (7, 7, 7), asked, options=none)
    assert outputs[0][-1].stats.drafted == 0
    with pytest.raises(UsageError, match=r"source 'row' is not known\n.*recycling"):
        DraftOptions(sources=("row",))


def windowed(output_len=400):
    window = new_window(SEVEN, [1, 2, 3], 0)
    return drafter_of([1, 2, 3], output_len, window=window)


def test_a_window_that_costs_nothing_is_fed_and_a_costly_one_tried_rarely():
    free, drafter = TreePolicy(StepCosts(FLAT), clock=lambda: 0.0), windowed()
    drafter.observe((), [1])
    free.plan([drafter], 1, 1000)
    assert drafter.fed_window
    assert len(drafter.propose().read) == 7
    dear, fed = TreePolicy(StepCosts(CostTable.of([(1, 0.01), (42, 0.02)])), clock=lambda: 0.0), []
    drafter = windowed(20_000)
    rng = random.Random(5)
    for _ in range(6000):
        drafter.observe([0] * len(drafter.propose().read), [rng.randrange(90)])
        dear.plan([drafter], 1, 1000)
        fed.append(drafter.fed_window)
    assert 24 <= sum(fed) <= 24 * 3  # half a percent of the time
    assert not any(fed[:1000])


def test_a_source_is_judged_by_what_only_it_brings():
    budget = SourceBudget(0.15, 0.005)
    assert budget.pays(0.1, 1.0)
    for _ in range(200):
        budget.brought(0)
    assert not budget.pays(0.1, 1.0)
    for _ in range(200):
        budget.brought(1)
    assert budget.pays(0.5, 1.0)


def planned_steps(policy, drafters, steps, texts, table=CPU):
    """Of each drafter the number of steps that were planned for it."""
    planned = [0] * len(drafters)
    for step in range(steps):
        for drafter, text in zip(drafters, texts, strict=True):
            drafter.observe((), [text[step]])
        policy.plan(drafters, len(drafters), 1000)
        count, fed = len(drafters), sum(drafter.propose().size for drafter in drafters)
        policy.record(fed, count, count, count, table.seconds(fed, count))
        for place, drafter in enumerate(drafters):
            planned[place] += not drafter._missed
    return planned


def test_sequences_back_off_whose_drafts_bring_less_than_planning_costs():
    rng = random.Random(2)
    texts = [[rng.randrange(90) for _ in range(400)], [place % 7 for place in range(400)]]
    times = iter(range(10**9))
    policy = TreePolicy(StepCosts(CPU), clock=lambda: 2e-4 * next(times))
    drafters = [drafter_of([1], 1000) for _ in texts]
    unlikely, likely = planned_steps(policy, drafters, 400, texts)
    assert unlikely < 80
    assert likely > 390
    quick = TreePolicy(StepCosts(CPU), clock=lambda: 0.0)
    assert planned_steps(quick, [drafter_of([1], 1000)], 400, texts[:1]) == [400]


@pytest.mark.parametrize(
    ("plan_s", "nodes", "learns"), [(1e-6, None, True), (1e-3, None, False), (1e-3, 3, True)]
)
def test_rows_of_steps_without_nodes_are_read_where_that_costs_little(plan_s, nodes, learns):
    times = iter(range(10**9))
    policy = TreePolicy(StepCosts(CPU), nodes, clock=lambda: plan_s * next(times))
    drafter, rng, read = drafter_of([1], 1000), random.Random(2), []
    for _ in range(20):
        drafter.observe((), [rng.randrange(90)])
        policy.plan([drafter], 1, 1000)
        read.append((len(drafter.propose().tokens), drafter.top_rows))
    assert all(rows for nodes, rows in read if nodes)
    assert any(rows for nodes, rows in read[1:] if not nodes) == learns


class CountingPlanner(Planner):
    plans = 0

    def plan(self, *args):
        self.plans += 1
        return super().plan(*args)


def test_texts_whose_nodes_cannot_pay_are_seldom_planned_and_still_found_to_repeat():
    times = iter(range(10**9))
    policy = TreePolicy(StepCosts(CPU), clock=lambda: 1.5e-5 * next(times))
    rng, drafter = random.Random(3), drafter_of([1], 1000)
    planned_steps(policy, [drafter], 70, [[rng.randrange(90) for _ in range(70)]])
    policy._planner = planner = CountingPlanner()
    due = 0
    for _ in range(300):
        due += planned_steps(policy, [drafter], 1, [[rng.randrange(90)]])[0]
    assert due > 2 * planner.plans
    planner.plans = 0
    planned_steps(policy, [drafter], 60, [list(range(10)) * 6])
    assert planner.plans > 20


def test_nodes_are_not_cheaper_where_a_prompt_is_in_the_step():
    even = CostTable.of([(1, 0.01), (1001, 1.01)])
    sizes = []
    for prompt in (0, 600):
        policy, rng = TreePolicy(StepCosts(even), clock=lambda: 0.0), random.Random(6)
        drafter = drafter_of([1, 2, 3], 2000)
        for _ in range(300):
            drafter.observe((), [rng.randrange(3)])
            policy.plan([drafter], 1 + prompt, 5000, prompt)
            policy.record(1, 1, 1, 1, 0.01)
        sizes.append(len(drafter.propose().tokens))
    assert sizes[0] == sizes[1]
    assert 2 < sizes[0] < 20


def test_a_sequence_that_backs_off_learns_what_it_missed():
    policy, drafter = (
        TreePolicy(StepCosts(COSTLY), clock=iter(range(10**9)).__next__),
        drafter_of([1], 1000),
    )
    assert planned_steps(policy, [drafter], 200, [list(range(90)) * 3], COSTLY)[0] < 60
    assert drafter._missed
    plain = drafter_of([1], 1000)
    for token in (list(range(90)) * 3)[:200]:
        plain.observe((), [token])
    free, drafter.backoff = TreePolicy(StepCosts(FLAT), 8, lambda: 0.0), None
    free.plan([drafter, plain], 2, 1000)
    assert drafter.propose().tokens == plain.propose().tokens != ()


class Counting(Drafter):
    """Proposes the number after the text's last one, and notes what it is asked."""

    def __init__(self):
        self.last, self.skipped, self.seconds = 0, 0, 0.0

    def propose(self):
        self.seconds += 1.0
        return Draft.chain([self.last + 1])

    def skip(self):
        self.skipped += 1

    def observe(self, greedy, committed):
        self.last = committed[-1]


def chained(other):
    shared = SharedTrees(200)
    tree = shared.tree([0], SamplingParams(), ("chain",), True)
    return TreeDrafter(tree, shared, 8, 1000, others=(other,))


def test_other_drafters_are_skipped_while_a_sequence_backs_off():
    other = Counting()
    policy = TreePolicy(StepCosts(COSTLY), clock=iter(range(10**9)).__next__)
    planned = planned_steps(policy, [chained(other)], 100, [list(range(100))], COSTLY)[0]
    assert planned < 60
    assert other.skipped == 100 - planned


def test_what_other_drafters_take_is_not_planning():
    other = Counting()
    policy = TreePolicy(StepCosts(COSTLY), clock=lambda: other.seconds)
    assert planned_steps(policy, [chained(other)], 100, [list(range(100))], COSTLY) == [100]


def test_what_a_tree_missed_is_not_held_against_the_draft_of_now():
    drafter, values = chained(Counting()), []
    for number in range(1, 180, 4):
        for token in (number, number + 1, number + 3):
            drafter.observe((), [token])
        drafter.draft_chains(True)
        (draft,) = Planner().plan([drafter.tree], [1], [8], 1)
        values += draft.values
        drafter.plan(draft, False)
        drafter.observe((), [number + 4])
    assert values[-1] > values[0]


class CountedCosts(StepCosts):
    """Costs that count what they learn from."""

    recorded = 0

    def record(self, tokens, sequences, seconds):
        self.recorded += 1
        super().record(tokens, sequences, seconds)


@pytest.mark.parametrize(("step_s", "share"), [(0.004, 1 / 10), (0.05, 1.0)])
def test_prices_of_short_steps_serve_several_once_they_are_settled(step_s, share):
    table = CostTable.of([(1, step_s), (64, step_s)])
    costs = CountedCosts(table)
    policy, drafter = TreePolicy(costs, clock=lambda: 0.0), drafter_of([1, 2, 3] * 9, 1000)
    drafter.observe((), [1])

    def decoded(steps):
        before = costs.recorded
        for _ in range(steps):
            policy.plan([drafter], 1, 64)
            draft = drafter.propose()
            drafter.observe((), [7])
            policy.record(draft.size, 1, 1, 1, table.seconds(draft.size))
        return (costs.recorded - before) / steps

    assert decoded(64) == 1.0
    assert decoded(400) == pytest.approx(share, rel=0.2)
    costs.recorded = 0
    policy.plan([drafter, drafter_of([1, 2, 3] * 9, 1000)], 2, 64)
    policy.record(2, 2, 2, 2, step_s)
    assert costs.recorded == 1  # a kind of step without prices
