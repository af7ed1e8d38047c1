"""The candidate tree of one request in plain Python: the oracle of `native/sequence.h`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numpy import ndarray

from tests.support.plain_trees.evidence import (
    CERTAIN,
    Chances,
    Facts,
    Row,
    Shared,
    correction_of,
    rows_of,
    scores_of,
    share_class,
    weights_of,
)
from tests.support.plain_trees.grammar import Path, PlainGrammar
from tests.support.plain_trees.texts import LONGEST_MATCH, Index, Place
from trtla.runtime.draft import TopRows
from trtla.runtime.sampling.noise import GOLDEN, ODD, _mixed, uniform
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.library import NO_USUAL, Usual
from trtla.settings.drafting import PROPOSERS, SOURCES

if TYPE_CHECKING:
    from trtla.settings.sampling import SamplingParams

_CONTEXT, _EXPECTED, _REQUESTS, _WINDOW, _CHAIN, _GRAMMAR, _RECYCLING = range(
    7
)  # places in SOURCES
_AGREEMENT = PROPOSERS.index("agreement")
_AFTER_TWO, _AFTER_ONE, _AFTER_ONE_TOO, _NEXT_NEXT = range(4)
_MOST_PROPOSALS = 32  # at a node
_MOST_IN_WINDOW = 32768
_OWN_RATE, _SHARED_RATE = 0.1, 0.15
_CORRECTING = 2.0  # corrections learn faster: from every node
_USEFUL_MATCH, _CHAIN_MATCH = 4, 16
_COUNTED, _COUNTED_DEPTHS = ("proposed", "fed", "accepted"), 32


def smallness(noise: float, token: int) -> float:
    """e to the minus Gumbel noise of a token, from its position's noise in [0, 1)."""
    bits = _mixed(int(noise * 2.0**53) * ODD + token * GOLDEN) >> 12
    return -math.log((bits + 0.5) * 2.0**-52)


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
        return self.kind if self.order < 0 else _RECYCLING if self.kind < 0 else _AGREEMENT


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


def _path(node: Node) -> Path:
    """The tokens from the root down to a node."""
    path: list[int] = []
    while node.parent is not None:
        path.append(node.token)
        node = node.parent
    return tuple(path[::-1])


def propose_text(
    kind: int, places: Sequence[Place], index: Index, found: dict[int, Proposal]
) -> None:
    ahead = [(index.tokens[place.next], place.match) for place in places]
    for token in dict.fromkeys(token for token, _ in ahead):
        longest = max(match for other, match in ahead if other == token)
        rivals = [other for other, match in ahead if match >= longest]
        offer_text(found, token, kind, longest, share_class(rivals.count(token), len(rivals)))


def offer_text(found: dict[int, Proposal], token: int, kind: int, match: int, share: int) -> None:
    one = found.setdefault(token, Proposal(token))
    if one.kind < 0 or one.match < match:
        one.kind, one.match, one.share = kind, match, share


class PlainTree:
    """One request's tree."""

    def __init__(
        self,
        shared: Shared,
        text: Sequence[int],
        sampling: SamplingParams,
        sources: Sequence[str],
        by_noise: bool,
        unplaced: int = 0,
    ) -> None:
        self._unplaced = unplaced
        self._shared, self._chances = shared, Chances(shared.chances)
        self._greedy, self._seed = sampling.greedy, sampling.seed
        self._heat = 1.0 if sampling.greedy else max(sampling.temperature, 0.05)
        self._drawn = by_noise and not sampling.greedy
        self._sources = {SOURCES.index(name) for name in sources}
        self._text: list[int] = []
        self._indexes = {_CONTEXT: Index(), _EXPECTED: Index(), _WINDOW: Index()}
        self._version = shared.others.version
        self._chains: list[tuple[int, ...]] = []
        self._grammar = PlainGrammar()
        self._allowed: Sequence[int] | None = None
        """Tokens that may follow the node that is expanded."""
        self._last_row = Row((), ())
        """What the target held for likely where it drew the last token."""
        self._gained = [0.0] * len(SOURCES)
        self._counted: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        """Nodes by depth, of each kind of count and source."""
        self._expected = [0.0] * len(PROPOSERS)
        self._nodes: list[Node] = []
        self.fed: list[Node] = []
        """The root, and the nodes of the draft."""
        for token in text:
            self._append(token)

    def gained(self, source: str) -> float:
        return self._gained[SOURCES.index(source)]

    def counts(self) -> dict[str, SourceCounts]:
        found = {}
        for place, name in enumerate(PROPOSERS):
            proposed, fed, accepted = (self._by_depth(what, place) for what in _COUNTED)
            if proposed:
                found[name] = SourceCounts(proposed, fed, accepted, self._expected[place])
        return found

    def _by_depth(self, what: str, source: int) -> tuple[int, ...]:
        counted = self._counted[what, source]
        return tuple(counted[depth] for depth in range(1, max(counted, default=0) + 1))

    def _count(self, what: str, node: Node) -> None:
        self._counted[what, node.source][min(node.depth, _COUNTED_DEPTHS)] += 1

    def feed(self, nodes: Iterable[Node]) -> None:
        self.fed += nodes

    def _count_planned(self) -> None:
        for node in self._nodes[1:]:
            self._count("proposed", node)
        for node in self.fed[1:]:
            self._count("fed", node)
            self._expected[node.source] += node.value

    def add_text(self, source: str, tokens: Sequence[int]) -> None:
        self._indexes[SOURCES.index(source)].add(tokens)

    def set_chains(self, chains: Iterable[Sequence[int]]) -> None:
        self._chains = [tuple(chain) for chain in chains]

    def set_grammar(
        self,
        forced: Iterable[Path],
        masks: Mapping[Path, ndarray],
        usual: Mapping[Path, Usual] = NO_USUAL,
    ) -> None:
        self._grammar = PlainGrammar.of(forced, masks, usual)

    def drop(self, places: Sequence[int]) -> None:
        self.fed = [node for place, node in enumerate(self.fed) if place not in places]

    def commit(self, tokens: Sequence[int], accepted: int = 0, rows: TopRows | None = None) -> None:
        at: Node | None = self.fed[0] if self.fed else self.start()
        self._count_planned()
        for place, token in enumerate(tokens):
            if at is not None:
                at = self._judge(at, token, place < accepted)
        self._correct(tokens)
        self._last_row = Row((), ())
        if rows is not None:
            self._learn(rows)
        for token in tokens:
            self._append(token)
        self.fed, self._grammar = [], PlainGrammar()

    def _append(self, token: int) -> None:
        self._text.append(token)
        if _CONTEXT in self._sources:
            self._indexes[_CONTEXT].append(token)

    def _learn(self, rows: TopRows) -> None:
        found = rows_of(rows)
        for place, row in zip(rows.nodes, found, strict=True):
            node = self.fed[place]
            above = node.parent.token if node.parent else (-1, *self._text[-2:])[-2]
            self._shared.rows.learn(above, node.token, row)
        if rows.last >= 0:
            self._last_row = found[rows.last]

    def _judge(self, node: Node, token: int, accepted: bool) -> Node | None:
        for one in self.expanded(node):
            hit = one.token == token
            self._chances.learn(one.weights, hit, _OWN_RATE)
            self._shared.chances.learn(one.weights, hit, _SHARED_RATE)
            if hit:
                if accepted and one.child is not None:
                    self._count("accepted", one.child)
                if accepted and one.kind >= 0 and (one.order < 0 or one.rank):
                    self._gained[one.kind] += 1.0
                return one.child if accepted else None
        return None

    def _correct(self, tokens: Sequence[int]) -> None:
        right: dict[int, bool | None] = {0: True}  # by node's number; None: not known yet
        for node in self._nodes[1:]:
            hit = right[node.parent.number if node.parent else 0]
            if hit:
                hit = tokens[node.depth - 1] == node.token if node.depth <= len(tokens) else None
            right[node.number] = hit
            if hit is None:
                continue
            error = hit - node.value
            self._chances.change((node.correction,), error, _CORRECTING * _OWN_RATE)
            self._shared.chances.change((node.correction,), error, _CORRECTING * _SHARED_RATE)

    def start(self) -> Node:
        if len(self._indexes[_WINDOW].tokens) > _MOST_IN_WINDOW:
            self._indexes[_WINDOW] = Index()  # no node has places of it
        self._nodes = [Node(self._text[-1])]
        self.fed = self._nodes[:1]
        return self._nodes[0]

    def corrected(self, product: float, source: int) -> float:
        return self._chances.corrected(product, correction_of(product, source))

    def child(self, parent: Node, proposal: Proposal, product: float, value: float) -> Node:
        source = proposal.source
        made = Node(
            proposal.token,
            parent,
            len(self._nodes),
            parent.depth + 1,
            value,
            product,
            source,
            correction_of(product, source),
        )
        self._nodes.append(made)
        proposal.child = made
        return made

    def expanded(self, node: Node) -> list[Proposal]:
        if node.proposals is None:
            found: dict[int, Proposal] = {}
            position = len(self._text) - self._unplaced + node.depth
            noise = uniform(self._seed, position) if self._drawn else 0.0
            tail = self._tail(node)
            path = _path(node)
            self._allowed = allowed = self._grammar.allowed.get(path)
            self._propose_texts(node, tail, found)
            self._propose_chains(path, found)
            if _RECYCLING in self._sources:
                self._propose_rows(node, tail, noise, found)
            if allowed is not None:
                found = {token: one for token, one in found.items() if token in allowed}
            node.proposals = self._ordered(node, noise, list(found.values()))
        return node.proposals

    def _tail(self, node: Node) -> list[int]:
        return [*self._text[-LONGEST_MATCH:], *_path(node)][-LONGEST_MATCH:]

    def _propose_texts(self, node: Node, tail: list[int], found: dict[int, Proposal]) -> None:
        others = self._shared.others
        if self._version != others.version:  # places of nodes above are of an older index
            for one in self._nodes:
                one.places.pop(_REQUESTS, None)
            self._version = others.version
        indexes = {**self._indexes, _REQUESTS: others.index}
        for kind in sorted(self._sources & indexes.keys()):
            index = indexes[kind]
            above = node.parent.places.get(kind, ()) if node.parent else ()
            places = index.follow(above, node.token) or index.find(tail)
            node.places[kind] = places
            propose_text(kind, places, index, found)
        for place in node.places.get(_REQUESTS, ()):
            if node.parent is None and place.match >= _USEFUL_MATCH:
                others.touch(place.next)

    def _propose_chains(self, path: Path, found: dict[int, Proposal]) -> None:
        for chain in self._chains:
            if len(path) < len(chain) and chain[: len(path)] == path:
                offer_text(found, chain[len(path)], _CHAIN, _CHAIN_MATCH, 0)
        if _GRAMMAR in self._sources:
            for token, match, agreeing, all_ in self._grammar.proposed(path):
                offer_text(found, token, _GRAMMAR, match, share_class(agreeing, all_))

    def _propose_rows(
        self, node: Node, tail: list[int], noise: float, found: dict[int, Proposal]
    ) -> None:
        rows, two = self._shared.rows, None
        if len(tail) > 1:
            two = rows.after_pair(tail[-2], tail[-1])
        if two is not None:
            self._offer_row(two, _AFTER_TWO, noise, found)
        one = rows.after(tail[-1])
        if one is not None:
            self._offer_row(one, _AFTER_ONE if two is None else _AFTER_ONE_TOO, noise, found)
        if node.parent is None:
            # What the row that gave the input token held for likely may come one place later.
            last = self._last_row
            left = [pair for pair in zip(last.ids, last.logs, strict=True) if pair[0] != tail[-1]]
            ids, logs = zip(*left, strict=True) if left else ((), ())
            self._offer_row(Row(ids, logs), _NEXT_NEXT, noise, found)

    def _offer_row(self, row: Row, order: int, noise: float, found: dict[int, Proposal]) -> None:
        row, rest = row.among(self._allowed, self._shared.vocab_size)
        small = [smallness(noise, token) if self._drawn else 1.0 for token in row.ids]
        scores = scores_of(row, rest, small, self._heat, self._shared.vocab_size)
        for rank, place in enumerate(sorted(range(len(scores)), key=lambda at: -scores[at])):
            one = found.setdefault(row.ids[place], Proposal(row.ids[place]))
            if one.order < 0:
                one.order, one.rank, one.score = order, rank, scores[place]

    def _ordered(self, node: Node, noise: float, found: list[Proposal]) -> list[Proposal]:
        longest = max((one.match for one in found if one.kind >= 0), default=0)
        best = next((one.score for one in found if one.order >= 0 and not one.rank), -1.0)
        for one in found:
            small = smallness(noise, one.token) if self._drawn and one.kind >= 0 else 1.0
            one.weights = weights_of(
                Facts(
                    node.depth + 1, self._drawn, one.kind, one.match, one.share, small,
                    one.order, one.rank, one.score, longest, best,
                )
            )  # fmt: skip
            one.chance = self._chances.of(one.weights)
        found.sort(key=lambda one: -one.chance)
        if self._allowed is not None and len(found) == len(self._allowed) > 0:
            found[-1].chance, found[-1].weights = CERTAIN, ()
        return found[:_MOST_PROPOSALS]
