"""Rows of trained heads in candidate trees: where they stand, what they promise, what they find."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.trees import GREEDY, accepted_path, plan, top_rows
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.drafting import PROPOSERS

ANY = -1


def add(tree, row, token, logs):
    rows = top_rows([logs])
    tree.add_head_row(row, token, rows.ids, rows.logs)


def new_tree(sources=("head",), text=(1, 2)):
    return SharedTrees(32).tree(text, GREEDY, sources, True)


def test_a_path_is_drafted_row_by_row():
    tree = new_tree()
    assert tree.unread() is None
    add(tree, -1, ANY, {5: 0.9, 6: 0.1})
    first = tree.unread()
    assert first[:2] == (0, 5)
    add(tree, 0, 5, {7: 0.9})
    second = tree.unread()
    assert second[:2] == (1, 7)
    assert 0.0 < second.value < first.value < 1.0
    draft = plan(tree, depth=3)
    assert draft.tokens[:2] == (5, 7)
    assert 6 in draft.tokens
    assert {PROPOSERS[source] for source in draft.sources} == {"head"}


def test_a_row_belongs_to_one_token_below_its_parent():
    tree = new_tree()
    add(tree, -1, ANY, {5: 0.5, 6: 0.4})
    add(tree, 0, 6, {7: 0.9})
    draft = plan(tree)
    below = {draft.tokens_to(node) for node in range(1, draft.size)}
    assert below == {(5,), (6,), (6, 7)}


def test_rows_by_depth_enter_as_products_of_chances():
    """As of Medusa, or a drafter of blocks: each row is independent of the tokens above it."""
    tree = new_tree()
    rows = [{5: 0.8, 6: 0.15}, {7: 0.8, 8: 0.15}, {9: 0.8}]
    for depth, row in enumerate(rows):
        add(tree, depth - 1, ANY, row)
    draft = plan(tree)
    paths = {draft.tokens_to(node): value for node, value in enumerate(draft.values, 1)}
    firsts = [set(row) for row in rows]
    wanted = {(a,) for a in firsts[0]} | {(a, b) for a in firsts[0] for b in firsts[1]}
    assert paths.keys() == wanted | {(a, b, 9) for a in firsts[0] for b in firsts[1]}
    # Corrections are 0 at first: a path's chance is the product of its steps'.
    second = paths[5, 7] / paths[(5,)]
    assert paths[6, 7] / paths[(6,)] == pytest.approx(second, rel=1e-5)
    assert paths[5, 8] / paths[5, 7] == pytest.approx(paths[6, 8] / paths[6, 7], rel=1e-5)


def test_rows_are_gone_when_the_text_goes_on():
    tree = new_tree()
    add(tree, -1, ANY, {5: 0.9})
    assert plan(tree).tokens == (5,)
    tree.commit([5, 3], 1)
    assert plan(tree).tokens == ()


def test_what_only_a_head_finds_is_counted():
    tree = new_tree(("head", "context"), (1, 2, 9, 1, 2))
    add(tree, -1, ANY, {5: 0.9})
    plan(tree)
    tree.commit([5, 3], 1)
    assert tree.gained("head") == 1
    tree = new_tree(("head", "context"), (1, 2, 9, 1, 2))
    add(tree, -1, ANY, {9: 0.9})
    draft = plan(tree)
    assert PROPOSERS[draft.sources[0]] == "agreement"
    tree.commit([9, 3], 1)
    assert tree.gained("head") == 0


def test_a_head_keeps_its_promises_however_sure_it_is_of_itself():
    """A head that is right in half of all cases and says 0.95 each time is believed half."""
    rng, shared = Random(3), SharedTrees(32)
    promised, kept = 0.0, 0
    tree = shared.tree((1, 2), GREEDY, ("head",), True)
    for step in range(600):
        token = rng.randrange(32)
        add(tree, -1, ANY, {token: 0.95})
        draft = plan(tree, 4, 1)
        text = [token if rng.random() < 0.5 else (token + 1) % 32, rng.randrange(32)]
        path = accepted_path(draft, text[:1])
        if step >= 100:
            promised, kept = promised + sum(draft.values), kept + len(path)
        tree.commit(text[: len(path) + 1], len(path))
    assert promised == pytest.approx(kept, rel=0.1)
    assert 200 < kept < 300
