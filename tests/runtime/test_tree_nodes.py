"""Which nodes candidate trees propose and take, against brute force."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.trees import GREEDY, learn, plan, top_rows
from trtla.runtime.draft import depths
from trtla.runtime.tree.library import Planner, SharedTrees


def found_places(tokens, tail):
    """{place of the next token: length of the match}, in the order in which they are found."""
    found = {}
    for length in (4, 2, 1):
        stretch = tail[-length:]
        ends = [
            end
            for end in reversed(range(length - 1, len(tokens)))
            if len(stretch) == length and tokens[end - length + 1 : end + 1] == stretch
        ]
        for end in ends[:16]:
            if end + 1 < len(tokens) and tokens[end + 1] >= 0:
                pairs = zip(reversed(tokens[: end + 1]), reversed(tail[-32:]), strict=False)
                match = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
                found.setdefault(end + 1, match)
    return found


def evidence_of(tokens, places, depth):
    """By proposed token, in the order found: its longest match and its share of such places."""
    found = {}
    for token in dict.fromkeys(tokens[place] for place in places):
        longest = max(match for place, match in places.items() if tokens[place] == token)
        rivals = [tokens[place] for place, match in places.items() if match >= longest]
        found[token] = (longest, rivals.count(token), len(rivals), depth)
    return found


def assert_as_brute_force(draft, tokens, text, nodes):
    """All nodes of a draft are what brute force finds below their parents, the likeliest first.

    What has the same evidence is equally likely.
    """
    places, chances = {0: found_places(tokens, text)}, {}
    value = {0: 1.0} | dict(enumerate(draft.values, 1))
    depth = depths(draft.parents)
    for node in range(draft.size):
        if node:
            above, token = places[draft.parents[node - 1]], draft.tokens[node - 1]
            places[node] = {
                place + 1: min(match + 1, 32)
                for place, match in above.items()
                if tokens[place] == token and place + 1 < len(tokens) and tokens[place + 1] >= 0
            } or found_places(tokens, [*text, *draft.tokens_to(node)])
        evidence = evidence_of(tokens, places[node], depth[node] + 1)
        children = [n for n, parent in enumerate(draft.parents, 1) if parent == node]
        proposed = [draft.tokens[child - 1] for child in children]
        left, order = value[node], []
        for child, token in zip(children, proposed, strict=True):
            chance = value[child] / left
            assert chances.setdefault(evidence[token], chance) == pytest.approx(chance, rel=1e-3)
            order.append((chances[evidence[token]], -list(evidence).index(token)))
            left *= 1.0 - chance
        for better, worse in itertools.pairwise(order):
            close = better[0] == pytest.approx(worse[0], rel=1e-3)
            assert better > worse or (close and better[0] != worse[0])
        if len(draft.tokens) < nodes:
            assert set(proposed) == set(evidence)
        for token in set(evidence) - set(proposed):
            assert not children or chances.get(evidence[token], 0.0) <= order[-1][0] * 1.001


texts = st.one_of(
    st.lists(st.integers(0, 3), min_size=1, max_size=120),
    st.tuples(st.integers(0, 3), st.integers(1, 90)).map(lambda one: [one[0]] * one[1]),
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 12)).map(
        lambda one: one[0] * one[1]
    ),
)


@examples(100)
@given(text=texts)
def test_own_text_is_looked_up_as_by_brute_force(text):
    shared = SharedTrees(10)
    draft = plan(shared.tree(text, GREEDY, ("context",), True), 24)
    assert_as_brute_force(draft, text, text, 24)
    assert bool(draft.tokens) == (text[-1] in text[:-1])


@pytest.mark.parametrize("source", ["expected", "requests", "window"])
@examples(60)
@given(several=st.lists(texts, max_size=4), text=texts)
def test_other_texts_are_apart_from_each_other(source, several, text):
    shared = SharedTrees(10)
    tree = shared.tree(text, GREEDY, (source,), True)
    for one in several:
        shared.add_text(one) if source == "requests" else tree.add_text(source, one)
    tokens = [token for one in several for token in (-1, *one)]
    assert_as_brute_force(plan(tree, 24), tokens, text, 24)
    assert shared.texts() == ([tuple(one) for one in several] if source == "requests" else [])


def test_a_window_forgets_when_it_has_grown_long_but_not_within_a_step():
    shared = SharedTrees(10)
    tree = shared.tree([5, 1, 2], GREEDY, ("window",), True)
    tree.add_text("window", [1, 2, 3, 4])
    assert plan(tree, depth=2).tokens == (3, 4)
    for gram in ([9] * 33_000, [3, 4]):
        tree.add_text("window", gram)
    tree.commit([3, 4, 1], 2)  # looks below nodes that have places of the texts
    tree.commit([2])
    assert plan(tree).tokens == ()
    tree.add_text("window", [1, 2, 8])
    assert plan(tree).tokens == (8,)


def learnt_beside(place):
    """The chance of a long match, once a draft's text has gone before the draft's commit.

    Args:
        place: of the only match in the text that comes instead.
    """
    shared, later = SharedTrees(10, 30), [0] * 30
    shared.add_text(range(10))
    tree = shared.tree([0, 1, 2, 3, 4], GREEDY, ("requests",), True)
    assert plan(tree, depth=1).tokens == (5,)
    later[place : place + 2] = 5, 6
    shared.add_text(later)
    tree.commit([5, 9], 1)
    probe = shared.tree([1, 2, 3, 4, 5, 6], GREEDY, ("expected",), True)
    probe.add_text("expected", range(1, 8))
    return plan(probe).values


def test_places_of_a_text_that_has_gone_are_not_read():
    assert learnt_beside(5) == learnt_beside(9)  # the draft had the place of the former


def test_the_least_recently_used_texts_go():
    shared = SharedTrees(100, 38)
    texts = [tuple(range(start, start + 9)) for start in (0, 10, 20)]
    for text in texts:
        shared.add_text(text)
    plan(shared.tree([0, 1, 2, 3], GREEDY, ("requests",), True))
    shared.add_text(range(30, 39))
    assert shared.texts() == [texts[0], texts[2], tuple(range(30, 39))]
    shared.add_text(range(50, 99))
    assert shared.texts() == [tuple(range(61, 99))]


def runs(*bounds):
    return [tuple(range(start, stop)) for start, stop in bounds]


CORPUS = runs((0, 300), (1000, 1090), (1200, 1210))
WHOLE = runs(*((start, start + 4) for start in range(0, 400, 4)))
MANY = runs(*((start, start + 30) for start in range(300, 900, 30)))


@pytest.mark.parametrize(
    ("corpus", "outputs", "left"),
    [
        (CORPUS, MANY, [*CORPUS, *runs((827, 840)), *MANY[-2:]]),
        (CORPUS, [*MANY, *runs((1500, 1999))], [*CORPUS, *runs((1899, 1999))]),
        (WHOLE, runs((7, 10)), [*WHOLE, *runs((7, 10))]),
        ([], runs((0, 10), (100, 480)), runs((0, 10), (100, 480))),
        ([], runs((0, 10), (100, 480), (500, 550)), runs((231, 480), (500, 550))),
        (runs((0, 10), (1000, 1395)), [], runs((5, 10), (1000, 1395))),
    ],
    ids=["many-outputs", "long-output", "whole-room", "fits", "end-of-output", "end-of-corpus"],
)
def test_kept_texts_stay_and_outputs_have_what_these_leave_and_a_quarter(corpus, outputs, left):
    shared = SharedTrees(2000, 400)
    for text in corpus:
        shared.add_text(text, kept=True)
    for text in outputs:
        shared.add_text(text)
    assert shared.texts() == left


def children_of(shared, text):
    """What rows propose after a text, best first."""
    return plan(shared.tree(text, GREEDY, ("recycling",), True), depth=1).tokens


def test_rows_after_two_tokens_go_before_rows_after_one():
    shared = SharedTrees(50)
    learn(shared, {(1, 2): {5: 0.9, 6: 0.1}, (3, 2): {7: 0.9, 6: 0.1}, (-1, 4): {8: 1.0}})
    assert children_of(shared, [1, 2])[0] == 5
    assert set(children_of(shared, [1, 2])) == {5, 6, 7}
    assert children_of(shared, [3, 2])[0] == 7
    assert children_of(shared, [9, 2]) == (7, 6)
    assert children_of(shared, [2]) == (7, 6)
    assert children_of(shared, [9, 4]) == (8,)
    assert children_of(shared, [2, 1]) == ()


def test_a_full_set_of_pairs_forgets_the_one_that_was_written_longest_ago():
    shared, last = SharedTrees(200_000), 7
    sets = [(before << 32 | last) * 0x9E3779B97F4A7C15 % 2**64 >> 49 for before in range(200_000)]
    alike = [before for before, own in enumerate(sets) if own == sets[0]][:5]
    learn(shared, {(one, last): {10 + place: 1.0} for place, one in enumerate(alike[:4])})
    learn(shared, {(alike[0], last): {20: 1.0}})
    learn(shared, {(alike[4], last): {14: 1.0}})
    heads = [children_of(shared, [one, last])[0] for one in alike]
    assert heads == [20, 14, 12, 13, 14]  # of the second one, only what follows the token is known


def test_short_rows_and_impossible_tokens():
    shared = SharedTrees(50)
    learn(shared, {(1, 2): {}, (1, 3): {5: 0.7, 6: 0.3, 7: 0.0}})
    assert children_of(shared, [1, 2]) == ()
    assert children_of(shared, [1, 3]) == (5, 6, 7)
    tree = shared.tree([1, 4], GREEDY, ("recycling",), True)
    tree.commit([9], rows=top_rows([{8: 0.5, 9: 0.5, 11: 0.0}], [0], 0))
    draft = plan(tree)
    assert set(draft.tokens) == {8, 11}  # likely in the place before, so maybe in this one
    assert all(math.isfinite(value) for value in draft.values)


ROWS = {
    (before, token): {0: 0.6 - 0.1 * token, 1: 0.3 + 0.05 * before, 2: 0.1}
    for before in range(3)
    for token in range(3)
}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_taken_is_the_best_tree_of_its_size(seed):
    rng, shared = Random(seed), SharedTrees(3)
    learn(shared, ROWS)
    trees = [
        shared.tree([rng.randrange(3) for _ in range(4)], GREEDY, ("recycling", "context"), True)
        for _ in range(2)
    ]
    planner = Planner()
    every = planner.plan(trees, [99, 99], [2, 1], 99)
    values, parents = [], []
    for draft in every:
        first = len(values)
        values += draft.values
        parents += [first + parent - 1 if parent else -1 for parent in draft.parents]
    assert len(values) >= 10
    nodes = range(len(values))
    for size in range(1, 6):
        best = max(
            sum(values[node] for node in some)
            for some in itertools.combinations(nodes, size)
            if all(parents[node] < 0 or parents[node] in some for node in some)
        )
        taken = planner.plan(trees, [99, 99], [2, 1], size)
        assert sum(len(draft.tokens) for draft in taken) == size
        assert sum(sum(draft.values) for draft in taken) == pytest.approx(best, rel=1e-5)


@examples(60)
@given(
    costs=st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]), min_size=12, max_size=12),
    rate=st.sampled_from([0.5, 1.0, 4.0]),
    margin=st.sampled_from([0.0, 0.1, 0.5]),
)
@example([0.5, *[0.0] * 11], 1.0, 0.0)  # nodes behind a step in the cost pay for those before
def test_as_many_nodes_are_fed_as_are_worth_the_most(costs, rate, margin):
    shared = SharedTrees(3)
    learn(shared, ROWS)
    tree = shared.tree([1, 2, 0], GREEDY, ("recycling",), True)
    values = plan(tree, 12).values
    seconds = list(itertools.accumulate(costs, initial=1.0))
    worth = [
        sum(values[:count]) * (1.0 - margin) - rate * (seconds[count] - seconds[0])
        for count in range(13)
    ]
    knots = tuple(enumerate(seconds))
    kept = plan(tree, 12, knots=knots, rate=rate, margin=margin)
    assert kept.values == values[: len(kept.tokens)]
    assert worth[len(kept.tokens)] == pytest.approx(max(worth), abs=1e-5)


def test_nodes_below_the_least_chance_are_not_looked_at():
    shared = SharedTrees(3)
    learn(shared, ROWS)
    tree = shared.tree([1, 2, 0], GREEDY, ("recycling",), True)
    every = plan(tree, 60).values
    likely = tuple(value for value in every if value >= 0.02)
    assert plan(tree, 60, least=0.02).values == likely
    assert 0 < len(likely) < len(every)
