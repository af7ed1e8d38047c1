"""When a trained head drafts, and how deep: by what it costs and brings."""

from __future__ import annotations

import pytest

from tests.support.trees import GREEDY, accepted_path, top_rows
from trtla.runtime.auto.heads import HeadPolicy
from trtla.runtime.drafters.head import HeadDrafter, HeadDrafters
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.library import Planner, SharedTrees

RIGHT, WRONG = 5, 6


class Heads(HeadDrafters):
    """A head whose rows are all alike, and whose forwards take time on a clock."""

    def __init__(self, chance, seconds):
        super().__init__(8)
        self.now, self.depths, self.chain = 0.0, [], []
        self._rows, self._seconds = top_rows([{RIGHT: chance}]), seconds

    def drafter(self):
        return HeadDrafter(self)

    def begin(self, due):
        for draft in due:
            self._add(draft, -1, -1)
        self.now += self._seconds
        self.depths.append(1)
        self.chain.clear()
        return list(due)

    def extend(self, grown):
        for draft, unread in grown:
            self._add(draft, unread.row, unread.token)
            self.chain.append(unread.token)
        self.now += self._seconds
        self.depths[-1] += 1

    def _add(self, draft, row, token):
        draft.tree.add_head_row(row, token, self._rows.ids[0], self._rows.logs[0])


def steps(heads, count, hits, policy=None):
    """Steps of one second, in which a head is right as often in a row as `hits` says."""
    policy = policy or HeadPolicy(heads, lambda: heads.now)
    shared = SharedTrees(32)
    tree = shared.tree((1, 2), GREEDY, ("head",), True)
    drafter = TreeDrafter(tree, shared, 9, 10_000, head=heads.drafter())
    planner, drafted = Planner(), []
    for step in range(count):
        policy.draft([drafter], 1.0, 1.0, False)
        drafted.append(drafter.had_head)
        (draft,) = planner.plan([drafter.tree], [8], [8], 8)
        text = [RIGHT] * hits(step) + [WRONG]
        path = accepted_path(draft, text[:-1])
        new = text[: len(path) + 1]
        heads.judge(heads.chain, new)
        drafter.tree.commit(new, len(path))
    return drafted, policy


def test_a_head_that_brings_nothing_retires_and_is_tried_again():
    heads = Heads(0.9, 0.2)
    drafted, policy = steps(heads, 4000, lambda step: 0)
    first = drafted.index(False)
    assert 10 < first < 50
    assert not all(drafted[first:])
    later = drafted[1000:]
    assert 0 < sum(later) < 0.05 * len(later)
    assert heads.active == drafted[-1]
    # The text changes: a trial shows it, and soon it drafts in every step.
    drafted, _ = steps(heads, 20_000, lambda step: 8, policy)
    assert all(drafted[-100:])


def test_a_head_that_pays_is_kept():
    drafted, _ = steps(Heads(0.9, 0.2), 500, lambda step: 2 * (step % 3 != 0))
    assert all(drafted)


@pytest.mark.parametrize(("seconds", "depth"), [(0.001, 9), (0.9, 1)])
def test_it_reads_as_deep_as_that_pays(seconds, depth):
    heads = Heads(0.98, seconds)
    steps(heads, 60, lambda step: 8)
    assert heads.depths[-1] == depth
