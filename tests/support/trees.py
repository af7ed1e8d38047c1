"""Candidate trees as tests drive them, alone and through sessions that their oracle repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.support.plain_trees.plan import PlainPlanner, PlainTrees
from trtla.runtime.costs import NodePrices
from trtla.runtime.draft import Draft, TopRows
from trtla.runtime.tree.library import READ, Planner, SharedTrees, Tree, Usual
from trtla.settings.drafting import SOURCES
from trtla.settings.sampling import SamplingParams

GREEDY = SamplingParams()
Trees = SharedTrees | PlainTrees


def phrases(seed: int, size: int = 60, words: int = 6) -> list[int]:
    """A text of tokens below 49 that says a few phrases again and again."""
    dice = Random(seed)
    known = [[dice.randrange(49) for _ in range(5)] for _ in range(words)]
    text = [token for _ in range(size) for token in dice.choice(known)]
    return text[:size]


def top_rows(
    rows: Sequence[Mapping[int, float]], nodes: Sequence[int] = (), last: int = -1
) -> TopRows:
    """Rows of probabilities by token, padded with -1."""
    ids = np.full((len(rows), READ), -1, np.int32)
    logs = np.full((len(rows), READ), -math.inf, np.float32)
    for place, row in enumerate(rows):
        best = sorted(row.items(), key=lambda one: -one[1])[:READ]
        for rank, (token, chance) in enumerate(best):
            ids[place, rank] = token
            logs[place, rank] = math.log(chance) if chance else -math.inf
    return TopRows(tuple(nodes) or tuple(range(len(rows))), ids, logs, last)


def learn(shared: Trees, rows: Mapping[tuple[int, int], Mapping[int, float]]) -> None:
    """Teach rows by (token before, token)."""
    pairs = [token for pair in rows for token in pair]
    shared.learn(pairs, top_rows(list(rows.values())))


def plan(tree: Tree, nodes: int = 64, depth: int = 32, **price: Any) -> Draft:
    """The draft of one tree."""
    return Planner().plan([tree], [nodes], [depth], nodes, NodePrices(**price))[0]


def accepted_path(draft: Draft, text: Sequence[int]) -> list[int]:
    """Nodes of a draft that a text goes along."""
    path = [0]
    below = {(p, t): n for n, (p, t) in enumerate(zip(draft.parents, draft.tokens, strict=True), 1)}
    for token in text:
        if (path[-1], token) not in below:
            break
        path.append(below[path[-1], token])
    return path[1:]


class Session:
    """Two requests that share trees, driven at random: the same seed asks the same questions."""

    def __init__(self, shared: Trees, rng: Random, vocab: int = 12) -> None:
        self.shared, self.rng, self.vocab = shared, rng, vocab
        self.planner: Any = PlainPlanner() if isinstance(shared, PlainTrees) else Planner()
        self.drafts: list[Draft] = []
        """All that was planned."""
        self.masks: list[Any] = []
        """Trees only point to them."""
        self.trees = [self._request() for _ in range(2)]

    def _request(self) -> Any:
        params = SamplingParams(
            temperature=self.rng.choice([0.0, 0.0, 0.7, 1.3]), seed=self.rng.randrange(99)
        )
        sources = [name for name in SOURCES if self.rng.random() < 0.8]
        text = self._text(self.rng.randrange(1, 50))
        tree = self.shared.tree(text, params, sources, self.rng.random() < 0.8)
        tree.add_text("expected", self._text(30))
        return tree

    def _text(self, count: int) -> list[int]:
        """Tokens of which most follow from the one before."""
        text = [self.rng.randrange(self.vocab)]
        while len(text) < count:
            free = self.rng.random() < 0.3
            text.append(self.rng.randrange(self.vocab) if free else 5 * text[-1] % self.vocab)
        return text

    def step(self) -> None:
        """Plan for both requests, or not, and let both texts go on."""
        planned = self.rng.random() < 0.9
        for tree in self.trees:
            self._propose(tree)
        drafts = [Draft(), Draft()]
        if planned:
            nodes = [self.rng.randrange(20) for _ in self.trees]
            depths = [self.rng.randrange(8) for _ in self.trees]
            most, least = self.rng.randrange(30), self.rng.choice([0.0, 0.01])
            drafts = self.planner.plan(self.trees, nodes, depths, most, NodePrices(least=least))
            self.drafts += drafts
        if self.rng.random() < 0.3:
            kept = self.rng.random() < 0.3
            self.shared.add_text(self._text(self.rng.randrange(40)), kept=kept)
        for tree, draft in zip(self.trees, drafts, strict=True):
            self._commit(tree, draft)

    def _propose(self, tree: Any) -> None:
        if self.rng.random() < 0.5:
            tree.add_text("window", self._text(5))
        if self.rng.random() < 0.5:
            count = self.rng.randrange(3)
            tree.set_chains([self._text(self.rng.randrange(1, 5)) for _ in range(count)])
        if self.rng.random() < 0.5:
            ahead = self._text(self.rng.randrange(1, 4))
            masks = {tuple(ahead[:size]): self._mask() for size in range(len(ahead))}
            tree.set_grammar([self._text(3)], masks, {(): self._usual()})
            self.masks.append(masks)

    def _usual(self) -> Usual:
        all_ = self.rng.randrange(1, 20)
        return Usual(self.rng.randrange(self.vocab), self.rng.randrange(1, all_ + 1), all_)

    def _mask(self) -> np.ndarray:
        """Few tokens or many that may follow."""
        count = self.rng.choice([1, 2, 3, 4, self.vocab - 2])
        return np.array([sum(1 << t for t in self.rng.sample(range(self.vocab), count))], np.uint32)

    def _commit(self, tree: Any, draft: Draft) -> None:
        if draft.size > 1 and self.rng.random() < 0.2:
            dropped = {draft.size - 1}
            tree.drop(sorted(dropped))
            draft = draft.without(dropped)
        leaf = self.rng.randrange(draft.size)
        path = draft.path(leaf)
        tokens = [*draft.tokens_to(leaf), self.rng.randrange(self.vocab)]
        if path and self.rng.random() < 0.2:
            tokens.pop()
        rows = None
        if self.rng.random() < 0.8:
            last = self.rng.choice([-1, len(path)])
            rows = top_rows([self._row() for _ in (0, *path)], (0, *path), last)
        tree.commit(tokens, len(path), rows)

    def _row(self) -> dict[int, float]:
        """Likelihoods of some tokens; one may be ruled out."""
        weights = {token: self.rng.random() ** 4 for token in range(self.vocab)}
        some = dict(self.rng.sample(sorted(weights.items()), self.rng.randrange(self.vocab)))
        total = 2.0 * sum(some.values()) if self.rng.random() < 0.5 else sum(some.values())
        row = {token: weight / total for token, weight in some.items()}
        return row | {next(iter(row)): 0.0} if len(row) > 3 and self.rng.random() < 0.3 else row
