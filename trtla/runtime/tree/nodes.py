"""The nodes of the fallback's candidate tree, and what is proposed below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtla.runtime.tree.evidence import share_class
from trtla.runtime.tree.texts import Index, Place
from trtla.settings.drafting import PROPOSERS, SOURCES

_ROWS, _BOTH = SOURCES.index("rows"), PROPOSERS.index("both")


@dataclass(slots=True)
class Proposal:
    """A token that may follow a node, and who says so."""

    token: int
    kind: int = -1
    """Of text; -1: none."""
    match: int = 0
    share: int = 0
    order: int = -1
    """Of row; -1: none."""
    rank: int = 0
    score: float = 0.0
    weights: tuple[int, ...] = ()
    chance: float = 0.0
    """To be right, given that the better ones are wrong."""
    child: Node | None = None

    @property
    def source(self) -> int:
        """Its place in `PROPOSERS`."""
        return self.kind if self.order < 0 else _ROWS if self.kind < 0 else _BOTH


@dataclass(slots=True, eq=False)
class Node:
    """A token of the tree, where one continuation of the text ends."""

    token: int
    parent: Node | None = None
    number: int = 0
    """Nodes that were made before it."""
    depth: int = 0
    value: float = 1.0
    """The chance that all tokens down to here are right."""
    product: float = 1.0
    """The same as the chances of its path say, before it is corrected."""
    source: int = 0
    correction: int = 0
    places: dict[int, list[Place]] = field(default_factory=dict)
    """Where texts go on, by kind."""
    proposals: list[Proposal] | None = None
    """What is proposed below it, likeliest first; None: nobody was asked."""


def propose_text(
    kind: int, places: Sequence[Place], index: Index, found: dict[int, Proposal]
) -> None:
    """What texts go on with, each token with its longest match."""
    ahead = [(index.tokens[place.next], place.match) for place in places]
    for token in dict.fromkeys(token for token, _ in ahead):
        longest = max(match for other, match in ahead if other == token)
        rivals = [other for other, match in ahead if match >= longest]
        offer_text(found, token, kind, longest, share_class(rivals.count(token), len(rivals)))


def offer_text(found: dict[int, Proposal], token: int, kind: int, match: int, share: int) -> None:
    """Of texts that propose the same the one with the longest match counts."""
    one = found.setdefault(token, Proposal(token))
    if one.kind < 0 or one.match < match:
        one.kind, one.match, one.share = kind, match, share
