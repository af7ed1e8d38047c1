"""How likely nodes are: chances that come true, and the noise that ranks a sampled request's."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
import torch

from tests.support.tensors import draw_at
from tests.support.trees import GREEDY, accepted_path, learn, plan, top_rows
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.drafting import PROPOSERS
from trtla.settings.sampling import SamplingParams

VOCAB = 24


def markov_rows(rng):
    """What follows each pair of tokens: few likely tokens, or many."""
    rows = {}
    for before in range(VOCAB):
        for token in range(VOCAB):
            power = rng.choice([2, 8, 20])
            weights = [rng.random() ** power for _ in range(VOCAB)]
            rows[before, token] = [weight / sum(weights) for weight in weights]
    return rows


def noisy(row, rng):
    """A row as a model might see it."""
    weights = [chance * rng.uniform(0.7, 1.3) for chance in row]
    return {token: weight / sum(weights) for token, weight in enumerate(weights)}


def markov_text(rows, rng, count):
    text = [0, 1]
    while len(text) < count:
        text += rng.choices(range(VOCAB), rows[text[-2], text[-1]])
    return text


def decode(text, rows, rng, nodes, warm):
    """By source, what fed nodes promised and what came true, once `warm` tokens are behind."""
    shared = SharedTrees(VOCAB)
    tree = shared.tree(text[:2], GREEDY, ("context", "recycling"), True)
    promised, kept, place = defaultdict(float), defaultdict(int), 2
    while place < len(text) - 12:
        draft = plan(tree, nodes, 10)
        path = accepted_path(draft, text[place:])
        if place >= warm:
            for value, source in zip(draft.values, draft.sources, strict=True):
                promised[PROPOSERS[source]] += value
            for node in path:
                kept[PROPOSERS[draft.sources[node - 1]]] += 1
        seen = [
            noisy(rows[text[place + step - 2], text[place + step - 1]], rng)
            for step in range(len(path) + 1)
        ]
        new = text[place : place + len(path) + 1]
        tree.commit(new, len(path), top_rows(seen, (0, *path), len(path)))
        place += len(new)
    return promised, kept


def test_as_many_tokens_are_accepted_as_were_promised():
    rng = Random(1)
    rows = markov_rows(rng)
    promised, kept = decode(markov_text(rows, rng, 3000), rows, rng, 12, 1000)
    assert sum(promised.values()) == pytest.approx(sum(kept.values()), rel=0.1)
    assert max(kept.values()) > 100
    for source, count in kept.items():
        if count > 100:
            assert promised[source] == pytest.approx(count, rel=0.1), source


def first_hits(by_noise, temperature):
    """How often the first proposal of a row that is exact is what will be drawn, of 60 places."""
    rng, shared = Random(5), SharedTrees(12)
    logits = torch.tensor([[rng.gauss(0.0, 1.5) for _ in range(12)]])
    row = dict(enumerate(logits.softmax(-1)[0].tolist()))
    learn(shared, {(-1, token): row for token in range(12)})
    hits = 0
    for place in range(60):
        params = SamplingParams(temperature=temperature, seed=place)
        text = [rng.randrange(12) for _ in range(1 + place)]
        tree = shared.tree(text, params, ("recycling",), by_noise)
        drawn = draw_at(logits, params, [uniform(place, len(text))]).tolist()
        hits += plan(tree, 1).tokens == tuple(drawn)
    return hits


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_noise_tells_what_an_exact_row_will_draw(temperature):
    assert first_hits(True, temperature) >= 59  # rows are kept in steps of 1/256
    assert first_hits(False, temperature) < 50


def masked(masks, forced=()):
    """A draft of eight nodes that a grammar alone proposes, and the mask of each path."""
    tree = SharedTrees(VOCAB).tree([0, 1], GREEDY, ("grammar",), True)
    bits = {
        path: np.array([sum(1 << token for token in some)], np.uint32)
        for path, some in masks.items()
    }
    tree.set_grammar(forced, bits)
    return plan(tree, 8)


def test_what_a_grammar_forces_is_certain_and_one_of_few_tokens_is_not():
    forced = masked({(): (5,), (5,): (6,)}, [(5, 6, 7)])
    assert forced.tokens == (5, 6, 7)
    assert forced.values[1] > 0.99
    for some in ((5, 6), (5, 6, 7), (5, 6, 7, 8)):
        few = masked({(): some})
        assert few.tokens == some
        assert few.values[0] < 0.6
        assert sum(few.values) > 0.9  # one of them has to come
    assert masked({(): (5, 6, 7, 8, 9)}).tokens == ()


def test_a_text_that_goes_on_with_one_of_few_tokens_is_believed_more():
    tree = SharedTrees(VOCAB).tree(
        [1, 2, 3, 4, 5, 6, 1, 2, 3, 4], GREEDY, ("context", "grammar"), True
    )
    mask = np.array([1 << 3 | 1 << 5 | 1 << 7], np.uint32)
    tree.set_grammar((), {(): mask})
    draft = plan(tree, 3, 1)
    assert draft.tokens[0] == 5
    assert draft.values[0] > 0.6
    assert [PROPOSERS[source] for source in draft.sources] == ["context", "grammar", "grammar"]
