"""The mask that is drawn is the one the model uses; every fed token has its role and its place."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.explain.support import numbers, record, recorded, unpainted
from tests.support.cases import cases
from tests.support.examples import examples
from tests.support.toys import greedy_scores, request
from tests.support.traces import M17, T4_PROMPT
from trtla.extras.explain.step_outcome import blocks, outcome_of, paths, positions, roles
from trtla.extras.explain.text_view import mask_lines
from trtla.runtime.draft import Draft
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.models.attention import tree_bias
from trtla.settings.drafting import DraftOptions
from trtla.settings.lookahead import LookaheadConfig


def seen(draft: Draft) -> list[list[bool]]:
    """For every node, whether it sees each node: the input, its ancestors and itself."""
    lines = [{0, *draft.path(node)} for node in range(draft.size)]
    return [[other in path for other in range(draft.size)] for path in lines]


@given(st.lists(st.integers(0, 40), max_size=40))
def test_the_mask_of_the_model_shows_a_node_its_path(places):
    parents = tuple(place % node for node, place in enumerate(places, 1))
    draft = Draft((0,) * len(parents), parents)
    assert (tree_bias(parents) == 0).tolist() == seen(draft)


def drawn_in_text(told, step) -> list[list[bool]]:
    """The cells, read back."""
    lines = list(mask_lines(outcome_of(told, step), numbers(told), unpainted))[3:]
    rows = []
    for line in lines:
        cells = "".join(line.rstrip(" ✓").split("▒")[-1].split())
        scale = len(cells) // step.draft.size
        rows.append([cell != "·" for cell in cells[::scale]])
    return rows


@pytest.mark.parametrize("triple", [(7, 7, 7), (3, 3, 2), (2, 2, 1), (1, 4, 1), (4, 4, 0)])
def test_text_shows_that_mask(triple):
    told, _ = recorded(M17, T4_PROMPT, triple, 48)
    for step in (told.steps[1], told.steps[len(told.steps) // 2], told.steps[-1]):
        expected = seen(step.draft)
        if step.draft.size > 1:
            assert drawn_in_text(told, step) == expected


@examples(100)
@given(cases())
def test_cells_and_candidates_stand_where_the_algorithm_puts_them(case):
    """Cell (l, j) at the input's position + l + j, a candidate's token i at + i."""
    rule, vocab, prompt, numbers_, count, _ = case
    triple, asked = LookaheadConfig(*numbers_), request(prompt, count)
    told, _ = record(
        greedy_scores(rule, vocab),
        vocab,
        triple,
        asked,
        partial(lookahead_drafter, options=DraftOptions(reference=True)),
    )
    for step in told.steps[1:]:
        places = positions(step, 0)
        waiting = 0 if step.window is None or step.window.full else len(step.window.fillers) + 1
        for node, role in enumerate(roles(step)):
            assert [waiting + level + column for level, column in role.cells] in (
                [], [places[node]],
            )  # fmt: skip
            assert all(place == places[node] for _, place in role.candidates)
            assert (role.part == "input") == (node == 0)
        if step.window is not None and step.window.full:
            cells = [cell for role in roles(step) for cell in role.cells]
            width, levels = triple.window_size, triple.ngram_size - 1
            every = [(level, column) for level in range(levels) for column in range(width)]
            assert cells == every[1:]
        assert [block.start for block in blocks(step)[1:]] == [b.end for b in blocks(step)[:-1]]


@examples(60)
@given(cases())
def test_shared_nodes_are_all_that_they_stand_for(case):
    rule, vocab, prompt, numbers_, count, _ = case
    triple, asked = LookaheadConfig(*numbers_), request(prompt, count)
    told, _ = record(greedy_scores(rule, vocab), vocab, triple, asked, lookahead_drafter)
    for step in told.steps[1:]:
        if step.window is None:
            continue
        found = roles(step)
        cells = [cell for role in found for cell in role.cells]
        assert len(cells) == len(set(cells)) == len(step.window.tokens) - len(step.window.fillers)
        for node, role in enumerate(found[1:], 1):
            for level, column in role.cells:
                assert step.window.levels[level][column] == step.draft.tokens[node - 1]
            assert role.cells or role.candidates or role.filler is not None


def test_a_tree_of_candidates_has_a_path_for_each_leaf():
    draft = Draft((4, 5, 6, 7), (0, 1, 1, 0))
    assert paths(draft) == [(1, 2), (1, 3), (4,)]
    assert paths(Draft.chain([1, 2, 3])) == [(1, 2, 3)]
    assert paths(Draft((4, 5), (0, 0), first_candidate=2)) == [(2,)]
    assert paths(Draft()) == []


def test_a_mask_too_wide_for_a_terminal_says_where_it_is_drawn():
    told, _ = recorded(M17, T4_PROMPT, (15, 8, 2), 48)
    (line,) = mask_lines(outcome_of(told, told.steps[-1]), numbers(told), unpainted)
    assert "-o step.svg" in line
