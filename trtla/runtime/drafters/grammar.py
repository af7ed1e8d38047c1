"""A grammar along the drafts of one step: the nodes that it allows, and tokens that it forces."""

from __future__ import annotations

from collections.abc import Sequence

from numpy import ndarray

from trtla.runtime.draft import Draft
from trtla.runtime.grammar import GrammarState
from trtla.runtime.tree.library import Tree

_LIKELY = 0.2
"""Chance of a node whose mask is computed before it is fed: it will be needed then."""
_FEW = 4
"""Allowed tokens that are worth a new plan, since the tree proposes them all."""


class GrammarGuide:
    """The part of a request's grammar that one step's tree knows."""

    def __init__(self, tree: Tree, state: GrammarState) -> None:
        self._tree, self._state = tree, state
        self._masks: dict[tuple[int, ...], ndarray] = {}
        self._forced: list[tuple[int, ...]] = []

    def look(self, draft: Draft) -> bool:
        """Compute masks behind likely nodes; return True if the draft should be planned again."""
        known, plan_again = len(self._masks), False
        for node in range(draft.size):
            if node and draft.values[node - 1] < _LIKELY:
                continue
            path = draft.tokens_to(node)
            mask = self._masks.get(path)
            if mask is None:
                mask = self._state.mask(path)
                plan_again |= mask is None or self._add(path, mask)
        if len(self._masks) > known:
            self._tree.set_grammar(self._forced, self._masks)
        return plan_again

    def _add(self, path: tuple[int, ...], mask: ndarray) -> bool:
        self._masks[path] = mask
        if forced := self._state.forced(path):
            self._forced.append((*path, *forced))
        return bool(forced) or _is_small(mask)

    def allowed(self, draft: Draft) -> Draft:
        """The draft without nodes that the grammar forbids, which the tree forgets as well."""
        dropped: set[int] = set()
        for node in range(1, draft.size):
            parent = draft.parents[node - 1]
            if parent in dropped or not self._allows(draft, parent, draft.tokens[node - 1]):
                dropped.add(node)
        if not dropped:
            return draft
        self._tree.drop(sorted(dropped))
        return draft.without(dropped)

    def _allows(self, draft: Draft, parent: int, token: int) -> bool:
        path = draft.tokens_to(parent)
        mask = self._masks.get(path)
        if mask is not None:
            return bool(mask[token >> 5] >> (token & 31) & 1)
        return self._state.allowed((*path, token)) == len(path) + 1


def _is_small(mask: ndarray) -> bool:
    words: Sequence[int] = mask[mask.nonzero()[0][: _FEW + 1]].tolist()
    return len(words) <= _FEW and sum(word.bit_count() for word in words) <= _FEW
