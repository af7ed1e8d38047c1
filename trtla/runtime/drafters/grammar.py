"""A grammar along the drafts of one step: the nodes that it allows, and tokens that it forces."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from numpy import ndarray

from trtla.runtime.draft import Draft
from trtla.runtime.grammar import GrammarState, allows
from trtla.runtime.tree.library import Tree, Usual

_LIKELY = 0.2
"""Chance of a node whose mask is computed before it is fed: it will be needed then."""
_FEW = 4
"""Allowed tokens that are worth a new plan, since the tree proposes them all."""
_USUAL = 0.7
"""Share of a mask's followers from which one is followed further."""
_MOST_LEARNT = 1 << 14
_MOST_S = 0.005
"""For the masks of one draft; mostly all of them take a tenth of that. One alone counts as half of
it at most: the processor may have had other work."""
Path = tuple[int, ...]


class GrammarGuide:
    """The part of a request's grammar that one step's tree knows.

    Args:
        usual: what has mostly followed masks of any request, by their hashes; it learns.
    """

    def __init__(self, tree: Tree, state: GrammarState, usual: dict[int, Usual]) -> None:
        self._tree, self._state, self._learnt = tree, state, usual
        self._masks: dict[Path, ndarray] = {}
        self._hashes: dict[Path, int] = {}
        self._usual: dict[Path, Usual] = {}
        self._forced: list[Path] = []
        self._spent_s = 0.0
        """For masks."""

    def look(self, draft: Draft) -> bool:
        """Compute masks behind likely nodes; return True if the draft should be planned again."""
        known, plan_again = len(self._masks), False
        for node in range(draft.size):
            if node and draft.values[node - 1] < _LIKELY:
                continue
            plan_again |= self._follow(draft.tokens_to(node))
        if len(self._masks) > known:
            self._tree.set_grammar(self._forced, self._masks, self._usual)
        return plan_again

    def _follow(self, path: Path) -> bool:
        """Compute the masks behind a path, and behind what must follow it, or mostly does."""
        chance, plan_again = 1.0, False
        while path not in self._masks and chance >= _USUAL and self._spent_s < _MOST_S:
            started = perf_counter()
            mask = self._state.draft_mask(path)
            self._spent_s += min(perf_counter() - started, _MOST_S / 2)
            if mask is None:
                return not self._state.is_dear
            forced, usual = self._add(path, mask)
            plan_again |= bool(forced or usual) or _is_small(mask)
            if usual is not None and not forced:
                chance *= usual.agreeing / (usual.all + 1)
            path += forced or (() if usual is None else (usual.token,))
        return plan_again

    def _add(self, path: Path, mask: ndarray) -> tuple[Path, Usual | None]:
        """Keep a mask; return the tokens that it forces, and the one that mostly follows it."""
        self._masks[path] = mask
        self._hashes[path] = hash(mask.tobytes())
        usual = self._learnt.get(self._hashes[path])
        if usual is not None and usual.all > 1 and usual.agreeing >= _USUAL * usual.all:
            self._usual[path] = usual
        if forced := tuple(self._state.forced(path)):
            self._forced.append(path + forced)
        return forced, self._usual.get(path)

    def saw(self, tokens: Sequence[int]) -> None:
        """Learn what has followed the masks along the text's new tokens."""
        if len(self._learnt) > _MOST_LEARNT:
            self._learnt.clear()
        for place, token in enumerate(tokens):
            key = self._hashes.get(tuple(tokens[:place]))
            if key is None:
                continue
            known = self._learnt.get(key)
            if known is not None and (known.token == token or 2 * known.agreeing > known.all + 1):
                agreeing = known.agreeing + (known.token == token)
                self._learnt[key] = Usual(known.token, agreeing, known.all + 1)
            else:
                self._learnt[key] = Usual(token, 1, 1)

    def allowed(self, draft: Draft) -> Draft:
        """The draft without nodes that the grammar forbids, which the tree forgets as well.

        Where masks take long it ends behind the known ones: all others wait for each mask. Where
        one takes too much there is none.
        """
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
        if self._state.is_dear:
            return False
        path = draft.tokens_to(parent)
        mask = self._masks.get(path)
        if mask is not None:
            return allows(mask, token)
        if self._spent_s >= _MOST_S:
            return False
        return self._state.allowed((*path, token)) == len(path) + 1


def _is_small(mask: ndarray) -> bool:
    words: Sequence[int] = mask[mask.nonzero()[0][: _FEW + 1]].tolist()
    return len(words) <= _FEW and sum(word.bit_count() for word in words) <= _FEW
