"""The candidate trees in plain Python, and which nodes pay: the oracle of `native/tree.cpp`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tests.support.plain_trees.evidence import Shared, rows_of
from tests.support.plain_trees.tree import Node, PlainTree
from trtla.runtime.costs import FREE, CostTable, NodePrices
from trtla.runtime.draft import NO_DRAFT, Draft, TopRows
from trtla.runtime.tree.library import MOST_TOKENS

if TYPE_CHECKING:
    from trtla.settings.sampling import SamplingParams


class PlainTrees:
    """What the trees of all requests share, and those trees."""

    def __init__(self, vocab_size: int, most_tokens: int = MOST_TOKENS) -> None:
        self._shared = Shared(vocab_size, most_tokens)

    def add_text(self, tokens: Sequence[int], *, kept: bool = False) -> None:
        self._shared.others.add(tokens, kept=kept)

    def texts(self) -> list[tuple[int, ...]]:
        return list(self._shared.others)

    def tree(
        self,
        text: Sequence[int],
        sampling: SamplingParams,
        sources: Sequence[str],
        by_noise: bool,
        unplaced: int = 0,
    ) -> PlainTree:
        return PlainTree(self._shared, text, sampling, sources, by_noise, unplaced)

    def learn(self, pairs: Sequence[int], rows: TopRows) -> None:
        for before, token, row in zip(pairs[::2], pairs[1::2], rows_of(rows), strict=True):
            self._shared.rows.learn(before, token, row)


class PlainPlanner:
    """Chooses the nodes of a step."""

    def plan(
        self,
        trees: Sequence[PlainTree],
        most_nodes: Sequence[int],
        most_depth: Sequence[int],
        most: int,
        prices: NodePrices = FREE,
    ) -> list[Draft]:
        choice = _Choice(trees, most_nodes, most_depth, prices.least)
        taken = choice.taken(most)
        if prices.knots:
            taken = taken[: _worth_most([node.value for _, node in taken], prices)]
        return [_draft(tree, at, taken) for at, tree in enumerate(trees)]


class _Choice:
    """Takes nodes from the likeliest on.

    A node is at most as likely as the one above it and the better ones beside it, so the first k
    that are taken are the best k.
    """

    def __init__(
        self,
        trees: Sequence[PlainTree],
        most_nodes: Sequence[int],
        most_depth: Sequence[int],
        least: float,
    ) -> None:
        self._trees, self._left = trees, list(most_nodes)
        self._most_depth, self._least = most_depth, least
        self._offers: list[tuple[float, int, int, int, float, float, Node]] = []
        """(-value, tree, node's number, proposal, product of the chances, chance that better ones
        are wrong, node)."""
        for at, tree in enumerate(trees):
            root = tree.start()
            if most_nodes[at] > 0:
                self._offer_first(at, root)

    def taken(self, most: int) -> list[tuple[int, Node]]:
        found: list[tuple[int, Node]] = []
        while self._offers and len(found) < most:
            value, at, _, which, product, wrong, node = heappop(self._offers)
            if not self._left[at]:
                continue
            self._left[at] -= 1
            proposal = self._trees[at].expanded(node)[which]
            made = self._trees[at].child(node, proposal, product, -value)
            found.append((at, made))
            self._offer(at, node, which + 1, wrong * (1.0 - proposal.chance), -value)
            self._offer_first(at, made)
        return found

    def _offer_first(self, at: int, node: Node) -> None:
        if node.depth < self._most_depth[at]:
            self._offer(at, node, 0, 1.0, node.value)

    def _offer(self, at: int, node: Node, which: int, wrong: float, most: float) -> None:
        proposals = self._trees[at].expanded(node)
        if which < len(proposals):
            product = node.product * proposals[which].chance * wrong
            value = min(most, self._trees[at].corrected(product, proposals[which].source))
            if value >= self._least:
                offer = (-value, at, node.number, which, product, wrong, node)
                heappush(self._offers, offer)


def _seconds(prices: NodePrices, nodes: int) -> float:
    return CostTable.of([(n + 1, s) for n, s in prices.knots]).seconds(nodes + 1)


def _worth_most(values: Sequence[float], prices: NodePrices) -> int:
    kept, best, total, plain = 0, 0.0, 0.0, _seconds(prices, 0)
    for count, value in enumerate(values, 1):
        total += value + prices.lesson
        cost = prices.rate * (_seconds(prices, count) - plain)
        worth = total * (1.0 - prices.margin) - cost
        if worth > best:
            best, kept = worth, count
    return kept


def _draft(tree: PlainTree, at: int, taken: Sequence[tuple[int, Node]]) -> Draft:
    tree.feed(node for place, node in taken if place == at)
    if len(tree.fed) == 1:
        return NO_DRAFT
    places = {id(node): place for place, node in enumerate(tree.fed)}
    nodes = tree.fed[1:]
    return Draft(
        tuple(node.token for node in nodes),
        tuple(places[id(node.parent)] for node in nodes),
        values=tuple(node.value for node in nodes),
        sources=tuple(node.source for node in nodes),
    )
