"""The choice of a step's nodes from the candidate trees of its sequences, in C++ by ctypes."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_double, c_float, c_int32, c_int64, c_void_p

from trtla.runtime.costs import FREE, NodePrices
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.tree import library
from trtla.runtime.tree.library import Tree


class _Plan(Structure):
    _fields_ = [
        ("count", c_int64),
        ("sequences", c_void_p),
        ("most_nodes", c_void_p),
        ("most_depth", c_void_p),
        ("most", c_int64),
        ("knots", c_int64),
        ("knot_nodes", c_void_p),
        ("knot_seconds", c_void_p),
        ("rate", c_double),
        ("margin", c_double),
        ("least", c_double),
        ("lesson", c_double),
        ("sizes", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("values", c_void_p),
        ("sources", c_void_p),
    ]


class Planner:
    """Chooses the nodes of a step; its buffers serve one step after the other."""

    def __init__(self, most: int = 1024) -> None:
        self._library = library.tree_library()
        self._plan = _Plan()
        self._pointer = byref(self._plan)
        self._most = self._trees = self._knots = 0
        self._prices: NodePrices | None = None
        """Those that the plan holds."""
        self._grow(1, most, 16)

    def _grow(self, trees: int, most: int, knots: int) -> None:
        """Make room for that many trees, nodes of a tree, and knots of prices."""
        if most > self._most:
            self._most = most
            self._tokens, self._parents = (c_int32 * most)(), (c_int32 * most)()
            self._values, self._sources = (c_float * most)(), (c_int32 * most)()
        if trees > self._trees:
            self._trees = trees
            self._sizes, self._handles = (c_int64 * trees)(), (c_void_p * trees)()
            self._nodes, self._depths = (c_int64 * trees)(), (c_int64 * trees)()
        if knots > self._knots:
            self._knots = knots
            self._numbers, self._seconds = (c_int64 * knots)(), (c_double * knots)()
            self._prices = None
        plan = self._plan
        plan.sequences, plan.sizes = addressof(self._handles), addressof(self._sizes)
        plan.most_nodes, plan.most_depth = addressof(self._nodes), addressof(self._depths)
        plan.knot_nodes, plan.knot_seconds = addressof(self._numbers), addressof(self._seconds)
        plan.tokens, plan.parents = addressof(self._tokens), addressof(self._parents)
        plan.values, plan.sources = addressof(self._values), addressof(self._sources)

    def plan(
        self,
        trees: Sequence[Tree],
        most_nodes: Sequence[int],
        most_depth: Sequence[int],
        most: int,
        prices: NodePrices = FREE,
    ) -> list[Draft]:
        """Return the nodes of each tree that pay, best first.

        Args:
            most_nodes: of each tree; `most_depth` likewise.
            most: nodes of all trees.
        """
        count, knots, plan = len(trees), len(prices.knots), self._plan
        if count > self._trees or most > self._most or knots > self._knots:
            self._grow(count, most, knots)
        each = zip(trees, most_nodes, most_depth, strict=True)
        for index, (tree, nodes, depth) in enumerate(each):
            self._handles[index] = tree.handle
            self._nodes[index], self._depths[index] = nodes, depth
        if prices is not self._prices:
            self._price(prices)
        plan.count, plan.most = count, most
        self._library.tree_plan(self._pointer)
        return self._drafts(self._sizes[:count])

    def _price(self, prices: NodePrices) -> None:
        plan = self._plan
        for index, knot in enumerate(prices.knots):
            self._numbers[index], self._seconds[index] = knot
        plan.knots = len(prices.knots)
        _, plan.rate, plan.margin, plan.least, plan.lesson = prices
        self._prices = prices

    def _drafts(self, sizes: Sequence[int]) -> list[Draft]:
        drafts, start = [], 0
        for size in sizes:
            end = start + size
            draft = NO_DRAFT
            if size:
                draft = Draft(
                    tuple(self._tokens[start:end]),
                    tuple(self._parents[start:end]),
                    values=tuple(self._values[start:end]),
                    sources=tuple(self._sources[start:end]),
                )
            drafts.append(draft)
            start = end
        return drafts
