"""Lookahead parallelism in plain integers: what each rank feeds of a step, and where that lies.

Every rank has the whole model and a cache of its own. A tree's branches are shared out; a branch is
fed with its ancestors, so what a rank feeds sees what it would see in one process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from trtla.runtime.draft import Draft, NoDrafter, depths
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as FedSequence
from trtla.settings.lookahead import AUTOREGRESSIVE

Move = tuple[int, int]
"""Slots of the cache, from which and to which rows are moved before the step."""


def step_message(feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
    """All that a forward depends on, as JSON: tokens, positions, blocks, and what sees what."""
    fed = []
    for feed in feeds:
        sequence, parents = feed.sequence, None if feed.draft is None else feed.draft.parents
        place = (sequence.num_cached, len(sequence.prompt), sequence.blocks)
        fed.append((feed.tokens, feed.rows, parents, *place))
    return [fed, moves]


def read_step(message: Sequence[Any]) -> tuple[list[Feed], list[Move]]:
    """The feeds and moves of a `step_message`."""
    fed, moves = message
    return [_read_feed(*one) for one in fed], [(source, target) for source, target in moves]


def _read_feed(
    tokens: list[int],
    rows: list[int],
    parents: list[int] | None,
    num_cached: int,
    prompt_len: int,
    blocks: list[int],
) -> Feed:
    draft = None if parents is None else Draft(tuple(tokens[1:]), tuple(parents))
    sequence = FedSequence(_request(prompt_len), AUTOREGRESSIVE, NoDrafter())
    sequence.num_cached, sequence.blocks = num_cached, tuple(blocks)
    return Feed(sequence, tuple(tokens), tuple(rows), draft)


@lru_cache(maxsize=64)
def _request(prompt_len: int) -> Request:
    return Request(0, (0,) * prompt_len)


Blocks = tuple[int, ...]
Nodes = tuple[int, ...]
_LACKING = -1


@lru_cache(maxsize=1024)
def share(parents: tuple[int, ...], parts: int) -> tuple[Nodes, ...]:
    """A tree in so many parts, each of branches that lie side by side; the largest is as small as
    such parts can be.

    Returns:
        Each part's nodes, rising: node 0 is in all, and with every node its ancestors are.
    """
    branches = list(_branches(parents))
    sizes, deep = [fresh for _, fresh in branches], depths(parents)
    ends = [deep[path[-1]] for path, _ in branches]
    low, high = max(ends), len(parents)
    while low < high:
        middle = (low + high) // 2
        if len(_packed(sizes, ends, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    found = []
    for first, stop in _packed(sizes, ends, low):
        found.append(tuple(sorted({node for path, _ in branches[first:stop] for node in path})))
    return (*found, *[(0,)] * (parts - len(found)))


def _branches(parents: tuple[int, ...]) -> Iterator[tuple[list[int], int]]:
    """Paths from node 0 to the leaves, depth first; and how many nodes each has that the one before
    has not."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents, 1):
        children[parent].append(node)
    path: list[int] = []
    left, fresh = [(0, 0)], -1  # node 0 is fed by all and counts for none
    while left:
        node, depth = left.pop()
        del path[depth:]
        path.append(node)
        fresh += 1
        if not children[node]:
            yield list(path), fresh
            fresh = 0
        left += [(child, depth + 1) for child in reversed(children[node])]


def _packed(sizes: list[int], ends: list[int], limit: int) -> list[tuple[int, int]]:
    """The fewest stretches of branches that have at most `limit` nodes each."""
    found, first, used = [], 0, 0
    for place, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        used += size
        if used > limit and place > first:
            found.append((first, place))
            first, used = place, end
    return [*found, (first, len(sizes))]


@lru_cache(maxsize=1024)
def node_owners(parents: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """The part that answers for each node: the first that has it."""
    found = [-1] * (len(parents) + 1)
    for part, nodes in enumerate(share(parents, parts)):
        for node in nodes:
            found[node] = part if found[node] < 0 else found[node]
    return tuple(found)


class Shares:
    """What one rank feeds of every step.

    Slots are numbered as rank 0 does it, which counts as if all fed everything. For each the rank
    knows the token whose keys and values belong there, and where its own cache has them: there,
    somewhere else (a drafted node, behind fewer others), or nowhere. What it lacks of a text it
    feeds when it feeds that text next.
    """

    def __init__(
        self, rank: int, ranks: int, slots: int, order: Callable[[Blocks], Sequence[int]]
    ) -> None:
        self._rank, self._ranks, self._order = rank, ranks, order
        self._tokens, self._places = array("q", bytes(8 * slots)), array("q", range(slots))
        self._here = bytearray(b"\1" * slots)
        """1 where a slot has the keys and values that belong there."""

    def owners(self, feeds: Sequence[Feed], shared: bool) -> list[int]:
        """The rank that answers for each row that the feeds want; prompts' are rank 0's.

        Args:
            shared: whether the ranks share this step's trees out; else rank 0 feeds all.
        """
        found: list[int] = []
        for turn, feed in enumerate(feeds):
            if not shared or feed.draft is None:
                found += [0] * len(feed.rows)
            else:  # parts go round: the last is the smallest
                parts = node_owners(feed.draft.parents, self._ranks)
                found += [(parts[node] - turn) % self._ranks for node in feed.rows]
        return found

    def moved(self, moves: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """What this rank's cache has to move where rank 0 says that these rows are moved."""
        found = [(self._places[source], self._tokens[source], target) for source, target in moves]
        for place, token, target in found:
            self._tokens[target] = token
            self._put(target, _LACKING if place == _LACKING else target)
        return [(place, target) for place, _, target in found if place not in (_LACKING, target)]

    def taken(self, feeds: Sequence[Feed], shared: bool) -> list[Feed]:
        """This rank's part of a step: what it lacks, the input tokens, its nodes, its rows."""
        owners, nodes = iter(self.owners(feeds, shared)), self._nodes(feeds, shared)
        rows = [[row for row in feed.rows if next(owners) == self._rank] for feed in feeds]
        own = [self._part(*one) for one in zip(feeds, nodes, rows, strict=True)]
        for one in zip(feeds, nodes, own, strict=True):  # now: two texts may lack the same rows
            self._note(*one)
        return own

    def _nodes(self, feeds: Sequence[Feed], shared: bool) -> list[Sequence[int]]:
        found: list[Sequence[int]] = []
        for turn, feed in enumerate(feeds):
            if feed.draft is None or (not shared and self._rank == 0):
                found.append(range(feed.length))
            elif not shared:
                found.append((0,))
            else:
                parts = share(feed.draft.parents, self._ranks)
                found.append(parts[(self._rank + turn) % self._ranks])
        return found

    def _part(self, feed: Feed, nodes: Sequence[int], rows: Sequence[int]) -> Feed:
        sequence, order = feed.sequence, self._order(feed.sequence.blocks)
        start = self._first_lacking(order, sequence.num_cached)
        lacking = [self._tokens[slot] for slot in order[start : sequence.num_cached]]
        before = len(lacking)
        places = {node: before + place for place, node in enumerate(nodes)}
        tokens = (*lacking, *(feed.tokens[node] for node in nodes))
        draft = None
        if feed.draft is not None:
            above = (places[feed.draft.parents[node - 1]] for node in nodes[1:])
            draft = Draft(tokens[1:], (*range(before), *above))
        own = sequence if not lacking else replace(sequence, num_cached=start)
        return Feed(own, tokens, tuple(places[row] for row in rows), draft)

    def _first_lacking(self, order: Sequence[int], cached: int) -> int:
        """The place of the first cached token that lacks; their number where none does."""
        if isinstance(order, range):
            found = self._here.find(0, order.start, order.start + cached)
            return cached if found < 0 else found - order.start
        return next((at for at in range(cached) if not self._here[order[at]]), cached)

    def _put(self, slot: int, place: int) -> None:
        self._places[slot], self._here[slot] = place, place == slot

    def _note(self, feed: Feed, nodes: Sequence[int], own: Feed) -> None:
        order, base = self._order(feed.sequence.blocks), feed.sequence.num_cached
        for slot in order[own.sequence.num_cached : base]:
            self._put(slot, slot)
        for node, token in enumerate(feed.tokens):
            slot = order[base + node]
            self._tokens[slot] = token
            self._put(slot, _LACKING)
        for place, node in enumerate(nodes):
            self._put(order[base + node], order[base + place])
