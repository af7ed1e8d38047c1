"""Several drafters as one: the first with a proposal is used, the next ones fill what is left.

Their drafts become branches of one tree, in which what begins alike is fed once. Every drafter sees
what the target said, as if it were alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter
from trtla.runtime.drafters.shapes import DraftTree


class ChainDrafter(Drafter):
    """The drafter of one request, made of others.

    What a drafter feeds only to look at it, the lookahead window, stands first in the tree and is
    never left out. Once the tree is full, further drafters are asked for nothing: a draft model
    makes no forward then, and catches up with the text when it is asked again.

    Args:
        drafters: those that draft, the most trusted first.
        budget: most tokens of a draft.
        windowed: place of the one drafter that has a window, if one has.
    """

    def __init__(
        self, drafters: Sequence[Drafter], budget: int, windowed: int | None = None
    ) -> None:
        self._drafters, self._budget, self._windowed = tuple(drafters), budget, windowed
        self._drafts: list[Draft] = [NO_DRAFT] * len(self._drafters)

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Those that it is made of."""
        return self._drafters

    def propose(self) -> Draft:
        """One tree of all drafts, as far as the budget goes."""
        window = NO_DRAFT
        if self._windowed is not None:
            window = self._drafters[self._windowed].propose()
        size = window.first_candidate - 1
        tree = DraftTree(window.tokens[:size], window.parents[:size])
        read: list[int] = []
        for place, drafter in enumerate(self._drafters):
            own = place == self._windowed
            full = len(tree.tokens) >= self._budget
            draft = window
            if not own:
                draft = drafter.skip() if full else drafter.propose()
            nodes = self._add(tree, draft, size if own else 0)
            read += (nodes[node] for node in draft.read)
            self._drafts[place] = draft
        return Draft(
            tuple(tree.tokens),
            tuple(tree.parents),
            size + 1,
            tuple(read),
            window.window_candidates,
            any(draft.drawn for draft in self._drafts),
            max(draft.top for draft in self._drafts),
        )

    def _add(self, tree: DraftTree, draft: Draft, fed: int) -> dict[int, int]:
        """Merge a draft's branches, but for its first `fed` nodes; where its nodes lie in the tree.

        A branch that does not fit ends where the budget does.
        """
        nodes = {node: node for node in range(fed + 1)}
        for node in range(fed + 1, draft.size):
            parent = nodes.get(draft.parents[node - 1])
            if parent is None:
                continue
            room = len(tree.tokens) < self._budget
            child = tree.child(parent, draft.tokens[node - 1], new=room)
            if child is not None:
                nodes[node] = child
        return nodes

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:
        """Give each drafter the most probable tokens that it asked for."""
        for drafter, draft in zip(self._drafters, self._drafts, strict=True):
            if draft.top:
                drafter.ranked([top[: draft.top] for top in tops])

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Give each drafter what it asked to read, and all of them the output."""
        start = 0
        for drafter, draft in zip(self._drafters, self._drafts, strict=True):
            end = start + len(draft.read) if greedy else start
            drafter.observe(greedy[start:end], committed)
            start = end
        self._drafts = [NO_DRAFT] * len(self._drafters)

    def close(self) -> None:
        """The request has ended."""
        for drafter in self._drafters:
            drafter.close()
