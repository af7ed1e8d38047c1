"""Candidate trees in C++ by ctypes: sources of drafts, chances, and the choice of a step's
nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ctypes import CDLL, POINTER, addressof, byref, c_double, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtla.runtime.arrays import address
from trtla.runtime.costs import FREE, NodePrices
from trtla.runtime.draft import NO_DRAFT, Draft, TopRows
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.calls import Counters, Plan, TreeSettings, tree_library
from trtla.settings.drafting import PROPOSERS, SOURCES

if TYPE_CHECKING:
    from numpy import ndarray

    from trtla.settings.sampling import SamplingParams

READ = 16
"""Tokens of a row that a tree learns from; the same as in `rows.h`."""
MOST_TOKENS = 1_000_000
"""Size of the texts that every request drafts from; a corpus of this size leaves a quarter more."""
_SEPARATOR = -1


class Usual(NamedTuple):
    """The token that has mostly followed a mask."""

    token: int
    agreeing: int
    """Times that it has."""
    all: int
    """Times that any token has."""


class Unread(NamedTuple):
    """A node that a head could be fed."""

    row: int
    """The head's row above it."""
    token: int
    value: float
    """The chance that all tokens down to it are right."""
    known: float
    """The chance of the best proposal below it without the head."""


NO_USUAL: Mapping[tuple[int, ...], Usual] = {}
_NONE = Usual(-1, 0, 0)


def _ids(tokens: Sequence[int]) -> Any:
    return (c_int32 * len(tokens))(*tokens)


@lru_cache(maxsize=256)
def _nodes(nodes: tuple[int, ...]) -> Any:
    return _ids(nodes)


def _by_depth(numbers: Sequence[float]) -> tuple[int, ...]:
    last = max((depth for depth, number in enumerate(numbers, 1) if number), default=0)
    return tuple(int(number) for number in numbers[:last])


class SharedTrees:
    """The state shared by the trees of all requests: rows, other requests' texts, chances.

    Args:
        most_tokens: of texts; see `add_text`.

    Raises:
        NotCompiled: there is no library for this processor.
    """

    def __init__(self, vocab_size: int, most_tokens: int = MOST_TOKENS) -> None:
        self._library = tree_library()
        self._handle = self._library.tree_shared(vocab_size, most_tokens)
        self.usual: dict[int, Usual] = {}
        """The usual continuations of a grammar's masks, by their hashes."""

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.tree_free_shared(self._handle)

    def add_text(self, tokens: Sequence[int], *, kept: bool = False) -> None:
        """Draft from a text in all requests; the least recently used texts of its kind are dropped.

        Args:
            kept: outputs never displace it. They have the rest of the room, and at least a quarter.
        """
        self._library.tree_add_shared_text(self._handle, _ids(tokens), len(tokens), kept)

    def texts(self) -> list[tuple[int, ...]]:
        start = POINTER(c_int32)()
        size = self._library.tree_shared_texts(self._handle, byref(start))
        tokens = start[:size]
        begins = [index for index, token in enumerate(tokens) if token < 0]
        ends = (*begins[1:], size)
        texts = (tuple(tokens[begin + 1 : end]) for begin, end in zip(begins, ends, strict=False))
        return [text for text in texts if text]

    def tree(
        self,
        text: Sequence[int],
        sampling: SamplingParams,
        sources: Sequence[str],
        by_noise: bool,
        unplaced: int = 0,
    ) -> Tree:
        """Return the tree of a request with this text so far.

        Args:
            sources: of drafts, names in `settings.drafting.SOURCES`.
            by_noise: rank a sampled request's proposals with the noise that draws its tokens.
            unplaced: first tokens of the text without positions, which an encoder reads.
        """
        bits = sum(1 << index for index, name in enumerate(SOURCES) if name in sources)
        how = (sampling.greedy, sampling.temperature, sampling.seed, bits, unplaced, by_noise)
        settings = TreeSettings(*how, sampling.top_k, sampling.top_p, sampling.min_p)
        handle = self._library.tree_sequence(self._handle, byref(settings), _ids(text), len(text))
        return Tree(self, self._library, handle)

    def learn(self, pairs: Sequence[int], rows: TopRows) -> None:
        """Learn rows that follow pairs of tokens: two numbers for each row."""
        self._library.tree_learn_pairs(
            self._handle, _ids(pairs), len(rows.nodes), address(rows.ids), address(rows.logs)
        )


class Tree:
    """One request's tree."""

    def __init__(self, shared: SharedTrees, library: CDLL, handle: int) -> None:
        self._shared, self._library, self.handle = shared, library, handle

    def __del__(self) -> None:
        self._library.tree_free_sequence(self.handle)

    def gained(self, source: str) -> float:
        """Count accepted tokens that only this source, a text's or `head`, ranked first."""
        address = self._library.tree_sequence_counters(self.handle)
        return float(Counters.from_address(address).gained[SOURCES.index(source)])

    def counts(self) -> dict[str, SourceCounts]:
        """Return the counts of those sources that proposed something."""
        counters = Counters.from_address(self._library.tree_sequence_counters(self.handle))
        counts = {
            name: SourceCounts(
                _by_depth(counters.proposed[index]),
                _by_depth(counters.fed[index]),
                _by_depth(counters.accepted[index]),
                sum(counters.expected[index]),
            )
            for index, name in enumerate(PROPOSERS)
        }
        return {name: count for name, count in counts.items() if count.proposed}

    def add_text(self, source: str, tokens: Sequence[int]) -> None:
        """Draft from a text of the source `expected` or `window`."""
        index = SOURCES.index(source)
        self._library.tree_add_text(self.handle, index, _ids(tokens), len(tokens))

    def set_chains(self, chains: Iterable[Sequence[int]]) -> None:
        """Set other drafters' proposals for the next step, each one chain of tokens."""
        tokens = [token for chain in chains for token in (*chain, _SEPARATOR)]
        self._library.tree_set_chains(self.handle, _ids(tokens), len(tokens))

    def add_head_row(self, row: int, token: int, ids: ndarray, logs: ndarray) -> None:
        """Add a row of a trained head, until the text goes on.

        Args:
            row: the row above it, by the order in which they were added; -1 of the first, which
                is behind the input token.
            token: the one below that row that it is behind; -1: any.
            ids: int32 [READ], the most probable tokens, best first; -1 behind the last one.
            logs: float32 [READ], logarithms of their probabilities.
        """
        self._library.tree_add_head_row(self.handle, row, token, address(ids), address(logs))

    def unread(self) -> Unread | None:
        """Return the first node without a row of the head on the most likely path; None: there are
        no rows, or nothing is proposed there."""
        token, chances = c_int32(), (c_double * 2)()
        row = self._library.tree_unread(self.handle, byref(token), chances)
        return None if row < 0 else Unread(row, token.value, *chances)

    def known(self) -> float:
        """Return the chance of the best proposal behind the input token, before a head has added
        rows."""
        chance: float = self._library.tree_known(self.handle)
        return chance

    def best_value(self) -> float:
        """Return the highest value of a node, its chance to be accepted; 0 if there is none."""
        value: float = self._library.tree_best_value(self.handle)
        return value

    def set_grammar(
        self,
        forced: Iterable[Sequence[int]],
        masks: Mapping[tuple[int, ...], ndarray],
        usual: Mapping[tuple[int, ...], Usual] = NO_USUAL,
    ) -> None:
        """Follow a grammar until the text goes on.

        Args:
            forced: paths, each with the tokens that have to follow it.
            masks: the tokens that may follow each path, as of `GrammarState.mask`; kept until then.
            usual: what has mostly followed the same mask as that of a path.
        """
        chains = [token for chain in forced for token in (*chain, _SEPARATOR)]
        paths = [token for path in masks for token in (*path, _SEPARATOR)]
        bits = (c_void_p * len(masks))(*map(address, masks.values()))
        follows = _ids([number for path in masks for number in usual.get(path, _NONE)])
        self._library.tree_set_grammar(
            self.handle, _ids(chains), len(chains), _ids(paths), len(paths), bits, follows
        )

    def drop(self, nodes: Sequence[int]) -> None:
        """Take nodes out of the draft that was planned; later ones move up."""
        self._library.tree_drop(self.handle, _ids(nodes), len(nodes))

    def commit(self, tokens: Sequence[int], accepted: int = 0, rows: TopRows | None = None) -> None:
        """Append tokens to the text and learn from them.

        Args:
            accepted: the number of first tokens that were nodes of the planned draft.
            rows: the target's most probable tokens after nodes of it, those after the path at
                `rows.last`.
        """
        nodes: tuple[Any, ...] = (None, 0, -1, None, None)
        if rows is not None:
            out = (address(rows.ids), address(rows.logs))
            nodes = (_nodes(rows.nodes), len(rows.nodes), rows.last, *out)
        self._library.tree_commit(self.handle, _ids(tokens), len(tokens), accepted, *nodes)


class Planner:
    """Chooses the nodes of a step; its buffers serve one step after the other."""

    def __init__(self, most: int = 1024) -> None:
        self._library = tree_library()
        self._plan = Plan()
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
