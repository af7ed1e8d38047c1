"""Lookahead parallelism in plain integers: each rank's share of a step, and its cache slots.

Every rank has the whole model and a cache of its own. A tree's branches are shared out; a branch is
fed with its ancestors, so a rank's tokens see the same as in one process.
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
"""Slots of the cache: rows are moved from the first to the second before the step."""


def step_message(feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
    """Return the input of a forward in JSON's types: tokens, positions, blocks, the tree, and True
    where the drafter wants states."""
    fed = []
    for feed in feeds:
        sequence, parents = feed.sequence, None if feed.draft is None else feed.draft.parents
        place = (sequence.num_cached, len(sequence.prompt), sequence.blocks)
        fed.append((feed.tokens, feed.rows, parents, *place, feed.wants_states))
    return [fed, moves]


def read_step(message: Sequence[Any]) -> tuple[list[Feed], list[Move]]:
    """Read the feeds and moves of a `step_message`."""
    fed, moves = message
    return [_read_feed(*fields) for fields in fed], [(source, target) for source, target in moves]


def _read_feed(
    tokens: list[int],
    rows: list[int],
    parents: list[int] | None,
    num_cached: int,
    prompt_len: int,
    blocks: list[int],
    wants_states: bool,
) -> Feed:
    draft = None if parents is None else Draft(tuple(tokens[1:]), tuple(parents))
    drafter = NoDrafter()
    drafter.wants_states = wants_states
    sequence = FedSequence(_request(prompt_len), AUTOREGRESSIVE, drafter)
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
    """Split a tree into `parts` parts, each of adjacent branches, with the largest as small as
    possible.

    Returns:
        Each part's nodes, rising: node 0 is in all, and every node comes with its ancestors.
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
    shares = []
    for first, stop in _packed(sizes, ends, low):
        shares.append(tuple(sorted({node for path, _ in branches[first:stop] for node in path})))
    return (*shares, *[(0,)] * (parts - len(shares)))


def _branches(parents: tuple[int, ...]) -> Iterator[tuple[list[int], int]]:
    """Yield paths from node 0 to the leaves, depth first, with the number of nodes that the path
    before lacks."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents, 1):
        children[parent].append(node)
    path: list[int] = []
    left, fresh = [(0, 0)], -1  # all ranks feed node 0, so it does not count
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
    """Return the fewest stretches of branches with at most `limit` nodes each."""
    stretches, first, used = [], 0, 0
    for index, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        used += size
        if used > limit and index > first:
            stretches.append((first, index))
            first, used = index, end
    return [*stretches, (first, len(sizes))]


@lru_cache(maxsize=1024)
def node_owners(parents: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Return the part responsible for each node: the first that has it."""
    owners = [-1] * (len(parents) + 1)
    for part, nodes in enumerate(share(parents, parts)):
        for node in nodes:
            owners[node] = part if owners[node] < 0 else owners[node]
    return tuple(owners)


class Shares:
    """One rank's part of every step.

    Slots are numbered as on rank 0, which counts as if all fed everything. For each slot the rank
    knows the token whose keys and values belong there, and where its own cache has them: there,
    somewhere else (a drafted node, behind fewer others), or nowhere. Tokens of a text that it lacks
    are fed together with that text's next ones.
    """

    def __init__(
        self, rank: int, ranks: int, slots: int, order: Callable[[Blocks], Sequence[int]]
    ) -> None:
        self._rank, self._ranks, self._order = rank, ranks, order
        self._tokens, self._places = array("q", bytes(8 * slots)), array("q", range(slots))
        self._here = bytearray(b"\1" * slots)
        """1 where a slot has the keys and values that belong there."""

    def owners(self, feeds: Sequence[Feed], shared: bool) -> list[int]:
        """Return the rank responsible for each row that the feeds want; prompts' are rank 0's.

        Args:
            shared: True if the ranks share this step's trees; else rank 0 feeds all.
        """
        owners: list[int] = []
        for turn, feed in enumerate(feeds):
            if not shared or feed.draft is None:
                owners += [0] * len(feed.rows)
            else:  # parts go round: the last is the smallest
                parts = node_owners(feed.draft.parents, self._ranks)
                owners += [(parts[node] - turn) % self._ranks for node in feed.rows]
        return owners

    def moved(self, moves: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Translate rank 0's moves of rows into those of this rank's cache."""
        rows = [(self._places[source], self._tokens[source], target) for source, target in moves]
        for place, token, target in rows:
            self._tokens[target] = token
            self._put(target, _LACKING if place == _LACKING else target)
        return [(place, target) for place, _, target in rows if place not in (_LACKING, target)]

    def taken(self, feeds: Sequence[Feed], shared: bool) -> list[Feed]:
        """Return this rank's part of a step: lacking tokens, input tokens, its nodes, its rows."""
        owners, nodes = iter(self.owners(feeds, shared)), self._nodes(feeds, shared)
        rows = [[row for row in feed.rows if next(owners) == self._rank] for feed in feeds]
        parts = [self._part(*part) for part in zip(feeds, nodes, rows, strict=True)]
        for part in zip(feeds, nodes, parts, strict=True):  # later: texts may lack the same
            self._note(*part)
        return parts

    def _nodes(self, feeds: Sequence[Feed], shared: bool) -> list[Sequence[int]]:
        chosen: list[Sequence[int]] = []
        for turn, feed in enumerate(feeds):
            if feed.draft is None or (not shared and self._rank == 0):
                chosen.append(range(feed.length))
            elif not shared:
                chosen.append((0,))
            else:
                parts = share(feed.draft.parents, self._ranks)
                chosen.append(parts[(self._rank + turn) % self._ranks])
        return chosen

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
        extended = sequence if not lacking else replace(sequence, num_cached=start)
        return Feed(extended, tokens, tuple(places[row] for row in rows), draft)

    def _first_lacking(self, order: Sequence[int], cached: int) -> int:
        """Return the index of the first cached token that lacks; `cached` if none does."""
        if isinstance(order, range):
            slot = self._here.find(0, order.start, order.start + cached)
            return cached if slot < 0 else slot - order.start
        return next((at for at in range(cached) if not self._here[order[at]]), cached)

    def _put(self, slot: int, place: int) -> None:
        self._places[slot], self._here[slot] = place, place == slot

    def _note(self, feed: Feed, nodes: Sequence[int], part: Feed) -> None:
        order, base = self._order(feed.sequence.blocks), feed.sequence.num_cached
        for slot in order[part.sequence.num_cached : base]:
            self._put(slot, slot)
        for node, token in enumerate(feed.tokens):
            slot = order[base + node]
            self._tokens[slot] = token
            self._put(slot, _LACKING)
        for place, node in enumerate(nodes):
            self._put(order[base + node], order[base + place])
