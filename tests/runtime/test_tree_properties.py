"""What candidate trees promise of every draft, in random sessions of two requests."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.tree_sessions import Calls, Session, Theme
from tests.support.trees import GREEDY, plan, top_rows
from trtla.runtime.draft import Draft, TopRows, depths
from trtla.runtime.tree.library import Planner, SharedTrees
from trtla.settings.drafting import SOURCES

VOCAB = 12
seeds = st.integers(0, 2**32)


def played(seed: int, theme: Theme = Theme(SOURCES), steps: int = 12) -> Calls:  # noqa: B008
    session = Session(seed, theme)
    for _ in range(steps):
        session.step()
    session.finish()
    return session.calls


def repeated(recorded: Calls, calls: Calls) -> Calls:
    """Make the recorded calls again."""
    for name, arguments, _ in recorded.log:
        calls(name, *arguments)
    return calls


@examples(40)
@given(seed=seeds, nodes=st.integers(0, 9), depth=st.integers(0, 5))
def test_limits_hold_and_values_never_rise_along_a_path(seed: int, nodes: int, depth: int) -> None:
    calls = played(seed, steps=3)
    drafts = calls.planner.plan(calls.trees, [nodes, 5], [depth, 3], 11)
    assert sum(len(draft.tokens) for draft in drafts) <= 11
    for draft, most, deepest in zip(drafts, [nodes, 5], [depth, 3], strict=True):
        assert len(draft.tokens) <= most
        assert max(depths(draft.parents)) <= deepest
        assert all(parent <= place for place, parent in enumerate(draft.parents))
        assert all(0 <= token < VOCAB for token in draft.tokens)
        assert list(draft.values) == sorted(draft.values, reverse=True)
        above = (1.0, *draft.values)
        for value, parent in zip(draft.values, draft.parents, strict=True):
            assert 0.0 < value <= above[parent]
        pairs = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(pairs)) == len(pairs)


@examples(20)
@given(seeds)
def test_requests_of_a_step_do_not_change_each_others_drafts(seed: int) -> None:
    calls = played(seed, steps=4)
    trees = [*calls.trees, calls.shared.tree([1, 5, 1, 5], GREEDY, SOURCES, True)]
    limits = ([9, 7, 8], [6, 4, 5])
    each = [
        Planner().plan([tree], [nodes], [depth], 99)
        for tree, nodes, depth in zip(trees, *limits, strict=True)
    ]
    assert Planner().plan(trees, *limits, 99) == [draft for (draft,) in each]


class Disturbed(Calls):
    """Also plans what is never fed, for these requests and for one that is cancelled."""

    def _plan(self, *arguments: Any) -> list[Any]:
        Planner().plan(self.trees, [31, 3], [9, 2], 40)
        other = self.shared.tree([1, 5, 1], GREEDY, SOURCES, True)
        other.add_text("window", [1, 3, 3])
        other.set_chains([[2, 10, 2]])
        plan(other, 20)
        best = [tree.best_value() for tree in self.trees]
        result = super()._plan(*arguments)
        for most, draft in zip(best, self.drafts[-len(best) :], strict=True):
            assert max(draft.values, default=0.0) <= most + 1e-6
        return result


@examples(20)
@given(seeds)
def test_drafts_follow_from_what_was_committed_alone(seed: int) -> None:
    calls = played(seed)
    for again in (Calls(VOCAB, 10_000), Disturbed(VOCAB, 10_000)):
        repeated(calls, again)
        assert again.drafts == calls.drafts
        assert again.log == calls.log


class RowsApart(Calls):
    """Learns a draft's rows by the tokens that they follow, not by its nodes."""

    def __init__(self, vocab: int, most_tokens: int) -> None:
        super().__init__(vocab, most_tokens)
        self._texts_so_far: dict[int, list[int]] = {}
        self._fed: dict[int, Draft] = {}

    def _open(self, tree: int, text: list[int], *how: Any) -> None:
        super()._open(tree, text, *how)
        self._texts_so_far[tree], self._fed[tree] = list(text), Draft()

    def _plan(self, *arguments: Any) -> list[Any]:
        result = super()._plan(*arguments)
        self._fed = dict(enumerate(self.drafts[-2:]))
        return result

    def _drop(self, tree: int, nodes: Any) -> None:
        super()._drop(tree, nodes)
        self._fed[tree] = self._fed[tree].without(set(nodes))

    def _commit(
        self, tree: int, tokens: Any, accepted: int, nodes: Any, rows: Any, last: int
    ) -> None:
        text, draft = self._texts_so_far[tree], self._fed.pop(tree, Draft())
        seen = top_rows([dict(row) for row in rows], nodes, last)
        self.trees[tree].commit(tokens, accepted, TopRows((), seen.ids, seen.logs, last))
        pairs: list[int] = []
        for node in nodes:
            pairs += [-1, *text, *draft.tokens_to(node)][-2:]
        if nodes:
            self.shared.learn(pairs, seen)
        text += tokens


@examples(40)
@given(seeds)
def test_a_row_belongs_to_the_tokens_before_it(seed: int) -> None:
    """Also where nodes were taken out of the draft, and where the text left it."""
    calls = played(seed, Theme(("context", "recycling")))
    assert repeated(calls, RowsApart(VOCAB, 10_000)).drafts == calls.drafts


@examples(20)
@given(seeds)
def test_what_a_grammar_forbids_is_not_drafted(seed: int) -> None:
    masks: dict[int, Any] = {}
    for name, arguments, drafts in played(seed, Theme(("grammar", "context", "recycling"))).log:
        if name == "grammar":
            masks[arguments[0]] = {tuple(path): some for path, some in arguments[2]}
        elif name in ("commit", "open"):
            masks[arguments[0]] = {}
        for tree, (tokens, parents, *_) in enumerate(drafts if name == "plan" else ()):
            draft = Draft(tokens, parents)
            for node in range(1, draft.size):
                *path, token = draft.tokens_to(node)
                assert token in masks.get(tree, {}).get(tuple(path), range(VOCAB))


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=30))
def test_shared_texts_never_outgrow_their_room(sizes: list[tuple[int, bool]]) -> None:
    shared, most = SharedTrees(VOCAB, 100), 100
    for size, kept in sizes:
        shared.add_text([int(kept)] * size, kept=kept)
        texts = shared.texts()
        held = [sum(len(text) for text in texts if text[0] == kind) for kind in (0, 1)]
        assert held[1] <= most
        assert held[0] <= (most if kept or not size else max(most - held[1], most // 4))
        assert not size or any(text[0] == kept for text in texts)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_requests_that_are_over_take_no_memory() -> None:
    shared, before = SharedTrees(VOCAB, 1000), 0
    text = [place * place % 11 for place in range(3000)]
    for number in range(70):
        if number == 10:
            before = resident()
        tree = shared.tree(text, GREEDY, SOURCES, True)
        tree.add_text("expected", text)
        plan(tree, 64)
        tree.commit(text[:5], 0)
        shared.add_text(text)
    assert resident() - before < 2**23
