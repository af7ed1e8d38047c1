"""Lookahead decoding: the window makes n-grams, the pool keeps them, a lookup proposes them.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024),
with TensorRT-LLM's warm-up, merged prefixes and acceptance from the window, and with n-grams from
prompt and output in the pool.

The window has W columns of Jacobi iterates, N-1 levels deep. Cell (level l, column j) stands at the
input's position + l + j once the window is full. While it fills (N-2 warm-up steps) only f < N-1
levels exist and N-2-f filler tokens stand between the input and column 0, as in TensorRT-LLM, so
that the draft budget holds for every (W, N, G).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from trtla.runtime.draft import Draft, Drafter, NoDrafter, depths
from trtla.runtime.request import Request
from trtla.settings.drafting import DraftOptions
from trtla.settings.lookahead import LookaheadConfig

_OPTIONS = DraftOptions()


class DraftTree:
    """Tokens below the input token (node 0), grown branch by branch from those of a draft."""

    def __init__(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> None:
        self.tokens, self.parents = list(tokens), list(parents)
        edges = zip(parents, tokens, strict=True)
        self._children = {edge: node for node, edge in enumerate(edges, 1)}

    def append(self, branch: Sequence[int]) -> None:
        first = len(self.tokens) + 1
        self.parents += (0, *range(first, first + len(branch) - 1))
        self.tokens += branch

    def merge(self, branch: Iterable[int], node: int = 0) -> int:
        """Add a branch below a node, along earlier branches; return its last node."""
        children, tokens = self._children, self.tokens
        for token in branch:
            child = children.get((node, token))
            if child is None:
                tokens.append(token)
                self.parents.append(node)
                child = children[node, token] = len(tokens)
            node = child
        return node

    def merge_tree(self, tokens: Iterable[int], parents: Iterable[int]) -> list[int]:
        """Add a tree below the input token; return the node of each of its nodes, the input
        first."""
        nodes = [0]
        for token, parent in zip(tokens, parents, strict=True):
            nodes.append(self.merge((token,), nodes[parent]))
        return nodes


@lru_cache(maxsize=1024)
def shallow_nodes(parents: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Return the nodes at most so deep below the input token, without that token."""
    return tuple(node for node, deep in enumerate(depths(parents)) if 0 < deep <= depth)


@lru_cache(maxsize=1024)
def window_parents(window_size: int, fillers: int, levels: int, full: bool) -> tuple[int, ...]:
    """Return the parents of the window's nodes: fillers, level 0, level 1, ...; node 0 is the
    input.

    In a full window the input token itself is column 0 of level 0.
    """
    parents = list(range(fillers))
    below = [0] if full else []
    while len(below) < window_size:
        node = len(parents) + 1
        parents.append(below[-1] if below else fillers)
        below.append(node)
    for _ in range(levels - 1):
        first = len(parents) + 1
        parents.extend(below)
        below = list(range(first, first + window_size))
    return tuple(parents)


class LookaheadWindow:
    """The window of one request: its tokens, and how predictions advance it.

    Args:
        config: the request's triple, N >= 2.
        seed: W + N - 3 tokens to fill it initially (they change speed, never text).
    """

    def __init__(self, config: LookaheadConfig, seed: Sequence[int]) -> None:
        self._width, self._ngram = config.window_size, config.ngram_size
        self._fillers = tuple(seed[: max(0, self._ngram - 3)])
        first_level = list(seed[len(self._fillers) :])
        if self._ngram == 2:
            first_level.insert(0, -1)  # column 0 of level 0 is always the input token
        self._levels = [first_level]

    @property
    def full(self) -> bool:
        """True once all N-1 levels exist and every step yields W n-grams."""
        return len(self._levels) == self._ngram - 1

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The cells, oldest level first, W in each. In a full window the input token replaces
        column 0 of level 0."""
        return tuple(map(tuple, self._levels))

    @property
    def fillers(self) -> tuple[int, ...]:
        """Tokens before column 0 while the window fills."""
        return self._fillers[len(self._levels) - 1 :]

    def tokens(self) -> tuple[int, ...]:
        first, *later = self._levels
        cells = first[1:] if self.full else first
        return (*self.fillers, *cells, *(token for level in later for token in level))

    @property
    def size(self) -> int:
        levels = len(self._levels)
        fillers = max(0, len(self._fillers) + 1 - levels)
        return fillers + self._width * levels - (levels == self._ngram - 1)

    def parents(self) -> tuple[int, ...]:
        return window_parents(self._width, len(self.fillers), len(self._levels), self.full)

    def newest(self) -> tuple[int, ...]:
        """Nodes of the newest level, whose predictions `advance` wants."""
        if self.full and len(self._levels) == 1:
            return tuple(range(self._width))
        end = self.size + 1
        return tuple(range(end - self._width, end))

    def advance(self, input_token: int, newest: Sequence[int]) -> list[tuple[int, ...]]:
        """Take the newest level's predictions: collect the columns' n-grams, roll one level.

        Args:
            input_token: the step's input token, the key of column 0.
            newest: predictions of the nodes in `newest()`, W tokens.

        Returns:
            W n-grams of N tokens, key first, columns in order; none while the window fills.
        """
        self._levels.append(list(newest))
        if len(self._levels) < self._ngram:
            return []
        self._levels[0][0] = input_token
        ngrams = list(zip(*self._levels, strict=True))
        del self._levels[0]
        return ngrams

    def draft(self, *, drawn: bool = False, reference: bool = False) -> Draft:
        """Return the window alone as a draft: cells with a common prefix share nodes, and those not
        deeper than N-1 may be accepted.

        Args:
            drawn: the target draws the new cells; else they are its argmax.
            reference: each cell has a node of its own, and none may be accepted.
        """
        tokens, parents, read = self.tokens(), self.parents(), self.newest()
        if reference:
            return Draft(tokens, parents, len(tokens) + 1, read, (), drawn)
        tree = DraftTree()
        nodes = tree.merge_tree(tokens, parents)
        shallow = shallow_nodes(parents, self._ngram - 1)
        accepted = tuple(dict.fromkeys(nodes[node] for node in shallow))
        read, size = tuple(nodes[node] for node in read), len(tree.tokens)
        return Draft(tuple(tree.tokens), tuple(tree.parents), size + 1, read, accepted, drawn)


class NgramPool:
    """Continuations of N-1 tokens under a one-token key, at most `capacity` (G) per key.

    A value is kept once per key; inserting it again makes it the youngest; overflow drops the
    oldest. This is the rule of lade and of TensorRT-LLM (lookaheadPoolManager). Capacity 0 stores
    nothing.
    """

    def __init__(self, ngram_size: int, capacity: int) -> None:
        self._value_len = ngram_size - 1
        self._capacity = capacity if ngram_size > 1 else 0
        self._values: dict[int, dict[tuple[int, ...], None]] = {}

    def insert(self, key: int, value: tuple[int, ...]) -> None:
        if not self._capacity:
            return
        values = self._values.setdefault(key, {})
        values.pop(value, None)
        values[value] = None  # dicts keep insertion order: first is oldest
        if len(values) > self._capacity:
            del values[next(iter(values))]

    def insert_text(self, tokens: Sequence[int]) -> None:
        """Add every n-gram of a text, oldest first; texts shorter than N hold none."""
        size = self._value_len
        for start in range(len(tokens) - size):
            self.insert(tokens[start], tuple(tokens[start + 1 : start + 1 + size]))

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        return list(self._values.get(key, ()))

    def __len__(self) -> int:
        return sum(len(values) for values in self._values.values())


class LookaheadDrafter(Drafter):
    """The drafter of one request.

    Args:
        config: the request's triple.
        prompt: prompt tokens, at least one.
        window: in its initial state.
        pool_from_text: keep n-grams of prompt and output in the pool as well as the window's.
        options: how it drafts.
    """

    def __init__(
        self,
        config: LookaheadConfig,
        prompt: Sequence[int],
        window: LookaheadWindow,
        *,
        pool_from_text: bool = True,
        options: DraftOptions = _OPTIONS,
    ) -> None:
        self._ngram, self._options = config.ngram_size, options
        self._pool = NgramPool(config.ngram_size, config.verification_set_size)
        self._window = window
        self._pool_from_text = pool_from_text
        self._recent = list(prompt)

    @property
    def window(self) -> LookaheadWindow:
        """The window as it stands: read it, do not change it."""
        return self._window

    @property
    def pool(self) -> NgramPool:
        self._pool_text()
        return self._pool

    def propose(self) -> Draft:
        """The window, then the pool's continuations of the input token as candidate branches."""
        drawn, reference = self._options.cells == "drawn", self._options.reference
        draft = self._window.draft(drawn=drawn, reference=reference)
        tree = DraftTree(draft.tokens, draft.parents)
        for branch in self.pool.lookup(self._recent[-1]):
            if reference:
                tree.append(branch)
            else:
                tree.merge(branch)
        return replace(draft, tokens=tuple(tree.tokens), parents=tuple(tree.parents))

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Pool the window's n-grams, then those that end in a committed token."""
        if greedy:
            for key, *value in self._window.advance(self._recent[-1], greedy):
                self._pool.insert(key, tuple(value))
        self._recent += committed
        self._pool_text()

    def _pool_text(self) -> None:
        size = self._ngram
        if len(self._recent) < size:
            return
        if self._pool_from_text:
            self._pool.insert_text(self._recent)
        del self._recent[: 1 - size]


def new_window(config: LookaheadConfig, prompt: Sequence[int], seed: int) -> LookaheadWindow:
    """Return a request's initial window: tokens drawn from the prompt, as in lade and
    TensorRT-LLM."""
    count = config.window_size + config.ngram_size - 3
    return LookaheadWindow(config, random.Random(seed).choices(prompt, k=count))


def lookahead_drafter(
    config: LookaheadConfig, request: Request, options: DraftOptions = _OPTIONS
) -> LookaheadDrafter | NoDrafter:
    """The drafter for a request with this triple."""
    if config.is_autoregressive:
        return NoDrafter()
    window = new_window(config, request.known_ids, request.sampling.seed)
    return LookaheadDrafter(config, request.known_ids, window, options=options)
