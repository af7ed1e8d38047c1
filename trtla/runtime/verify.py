"""Verification: which drafted tokens the target itself would have said.

The target has drawn one token after every node that matters; a draft is kept exactly as long as it
equals what was drawn. So the emitted tokens are the target's own, whatever was drafted (Rule A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtla.runtime.draft import Draft


@dataclass(frozen=True, slots=True)
class Accepted:
    """The longest drafted path that matches the target's draws, and the draw that ends it."""

    tokens: tuple[int, ...]
    """Tokens to emit: the accepted drafts, then the token the target drew after them."""
    nodes: tuple[int, ...]
    """Nodes of the accepted drafts, parents first; one fewer than tokens."""


def accept(draft: Draft, draws: Mapping[int, int]) -> Accepted:
    """Follow the target's draws through the candidate branches.

    Args:
        draft: what was fed.
        draws: the target's token after node 0 and after every candidate node.
    """
    children: dict[tuple[int, int], list[int]] = {}
    for node in draft.candidates:
        edge = (draft.parents[node - 1], draft.tokens[node - 1])
        children.setdefault(edge, []).append(node)
    tokens = [draws[0]]
    frontier = [0]
    while True:
        matching = [child for node in frontier for child in children.get((node, tokens[-1]), ())]
        if not matching:
            return Accepted(tuple(tokens), draft.path(frontier[0]))
        frontier = matching
        tokens.append(draws[frontier[0]])
