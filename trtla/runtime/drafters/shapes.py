"""Shapes of drafts: one tree from many branches, and how long a chain may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from trtla.runtime.draft import depths


class DraftTree:
    """Tokens below the input token (node 0), grown branch by branch.

    Args:
        tokens: what is fed in any case, as it is.
        parents: their parent nodes.
    """

    def __init__(self, tokens: Iterable[int] = (), parents: Iterable[int] = ()) -> None:
        self.tokens, self.parents = list(tokens), list(parents)
        self._children: dict[tuple[int, int], int] = {}

    def append(self, branch: Sequence[int]) -> None:
        """Add a branch below the input token, on nodes of its own."""
        first = len(self.tokens) + 1
        self.parents += (0, *range(first, first + len(branch) - 1))
        self.tokens += branch

    def merge(self, branch: Iterable[int], node: int = 0) -> int:
        """Add a branch below a node, along what was merged before; its last node."""
        children, tokens = self._children, self.tokens
        for token in branch:
            child = children.get((node, token))
            if child is None:
                tokens.append(token)
                self.parents.append(node)
                child = children[node, token] = len(tokens)
            node = child
        return node

    def child(self, node: int, token: int, *, new: bool) -> int | None:
        """The merged node of a token below a node; where there is none, a new one if wanted."""
        found = self._children.get((node, token))
        return self.merge((token,), node) if found is None and new else found

    def merge_tree(self, tokens: Iterable[int], parents: Iterable[int]) -> list[int]:
        """Add a tree below the input token; the node here of each of its nodes, the input first."""
        nodes = [0]
        for token, parent in zip(tokens, parents, strict=True):
            nodes.append(self.merge((token,), nodes[parent]))
        return nodes


@lru_cache(maxsize=1024)
def shallow_nodes(parents: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Nodes at most so deep below the input token, which is none of them."""
    return tuple(node for node, deep in enumerate(depths(parents)) if 0 < deep <= depth)


class ChainLength:
    """The limit of one request.

    A step commits what is accepted and one token more, so the draft leaves room for that one: no
    token is fed that could never be accepted, and a text never needs more cache than its own.

    Args:
        gamma: most tokens of a draft.
        max_output_len: of the request; None: its end is not known.
    """

    def __init__(self, gamma: int, max_output_len: int | None) -> None:
        self._gamma, self._left = gamma, max_output_len

    def now(self) -> int:
        """Most tokens to draft in this step."""
        return self._gamma if self._left is None else min(self._gamma, self._left - 1)

    def commit(self, count: int) -> None:
        """Tokens have become output."""
        if self._left is not None:
            self._left -= count
