"""Random requests that share candidate trees, as calls that can be recorded and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np

from tests.support.trees import top_rows
from trtla.runtime.costs import NodePrices
from trtla.runtime.draft import Draft
from trtla.runtime.tree.library import Planner, SharedTrees, Tree, Usual
from trtla.settings.drafting import SOURCES
from trtla.settings.sampling import SamplingParams

WITHOUT_HEADS = tuple(name for name in SOURCES if name != "head")
COUNTED = [name for name in SOURCES if name != "recycling"]
"""Sources whose gain is counted."""


class Calls:
    """Shared trees whose calls are a name and arguments of JSON; so are their results."""

    def __init__(self, vocab: int, most_tokens: int) -> None:
        self.vocab = vocab
        self.shared = SharedTrees(vocab, most_tokens)
        self.trees: list[Tree] = []
        self.planner = Planner()
        self.drafts: list[Draft] = []
        """All that were planned."""
        self.log: list[Any] = []
        """All calls: name, arguments, result."""
        self._masks: list[Any] = []
        """Trees only point to them."""

    def __call__(self, name: str, *arguments: Any) -> Any:
        result = getattr(self, f"_{name}")(*arguments)
        self.log.append([name, arguments, result])
        return result

    def _open(self, tree: int, text: Sequence[int], heat: float, seed: int, *how: Any) -> None:
        """Begin a request, in place of the one that was this tree's."""
        params = SamplingParams(temperature=heat, seed=seed)
        self.trees[tree : tree + 1] = [self.shared.tree(text, params, *how)]

    def _text(self, tree: int, source: str, tokens: Sequence[int]) -> None:
        self.trees[tree].add_text(source, tokens)

    def _shared_text(self, tokens: Sequence[int], kept: bool) -> None:
        self.shared.add_text(tokens, kept=kept)

    def _chains(self, tree: int, chains: Sequence[Sequence[int]]) -> None:
        self.trees[tree].set_chains(chains)

    def _head(self, tree: int, row: int, token: int, logs: Sequence[tuple[int, float]]) -> None:
        rows = top_rows([dict(logs)], (0,), -1)
        self.trees[tree].add_head_row(row, token, rows.ids, rows.logs)

    def _unread(self, tree: int) -> Any:
        unread = self.trees[tree].unread()
        return unread and [unread.row, unread.token, round(unread.value, 5)]

    def _grammar(self, tree: int, forced: Any, allowed: Any, usual: Any) -> None:
        masks = {
            tuple(path): np.array([sum(1 << token for token in some)], np.uint32)
            for path, some in allowed
        }
        self._masks.append(masks)
        self.trees[tree].set_grammar(forced, masks, {(): Usual(*usual)})

    def _plan(self, nodes: Any, depths: Any, most: int, prices: dict[str, Any]) -> list[Any]:
        drafts = self.planner.plan(self.trees, nodes, depths, most, NodePrices(**prices))
        self.drafts += drafts
        return [
            [
                draft.tokens,
                draft.parents,
                [round(value, 5) for value in draft.values],
                draft.sources,
            ]
            for draft in drafts
        ]

    def _drop(self, tree: int, nodes: Sequence[int]) -> None:
        self.trees[tree].drop(nodes)

    def _commit(
        self, tree: int, tokens: Sequence[int], accepted: int, nodes: Any, rows: Any, last: int
    ) -> None:
        seen = top_rows([dict(row) for row in rows], nodes, last) if nodes else None
        self.trees[tree].commit(tokens, accepted, seen)

    def _counts(self, tree: int) -> dict[str, Any]:
        own = self.trees[tree]
        gained = {name: count for name in COUNTED if (count := own.gained(name))}
        counts = {name: asdict(count) for name, count in own.counts().items()}
        for count in counts.values():
            count["expected"] = round(count["expected"], 4)
        return {"gained": gained, **counts}

    def _texts(self) -> list[tuple[int, ...]]:
        return self.shared.texts()


@dataclass(frozen=True)
class Theme:
    """What a session's requests use."""

    sources: Sequence[str] = WITHOUT_HEADS
    heats: Sequence[float] = (0.0, 0.0, 0.7, 1.3)
    vocab: int = 12
    most_tokens: int = 10_000
    shared: float = 0.3
    """The share of steps in which another request's text comes."""
    priced: bool = False


class Session:
    """Two requests that share trees, driven at random: the same seed makes the same calls."""

    def __init__(self, seed: int, theme: Theme = Theme()) -> None:
        self.calls = Calls(theme.vocab, theme.most_tokens)
        self._theme, self._vocab, self._dice = theme, theme.vocab, Random(seed)
        for tree in range(2):
            self._open(tree)

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _open(self, tree: int) -> None:
        dice, theme = self._dice, self._theme
        text = self._text(dice.randrange(1, 50))
        sources = [name for name in theme.sources if self._chance(0.8)] or theme.sources
        heat, seed, unplaced = dice.choice(theme.heats), dice.randrange(99), dice.randrange(2)
        by_noise = self._chance(0.8)
        how = (list(sources), by_noise, min(unplaced, len(text) - 1))
        self.calls("open", tree, text, heat, seed, *how)
        if "expected" in theme.sources:
            self.calls("text", tree, "expected", self._text(30))

    def _text(self, count: int) -> list[int]:
        """Tokens of which most follow from the one before."""
        text = [self._dice.randrange(self._vocab)]
        while len(text) < count:
            free = self._chance(0.3)
            text.append(self._dice.randrange(self._vocab) if free else 5 * text[-1] % self._vocab)
        return text

    def step(self) -> None:
        """Plan for both requests, or not, and let both texts go on."""
        dice, drafts = self._dice, [Draft(), Draft()]
        for tree in range(2):
            self._propose(tree)
        if self._chance(0.9):
            nodes = [dice.randrange(24) for _ in drafts]
            depths = [dice.choice([0, 1, 2, 3, 5, 11]) for _ in drafts]
            self.calls("plan", nodes, depths, dice.randrange(36), self._prices())
            drafts = self.calls.drafts[-2:]
        if "requests" in self._theme.sources and self._chance(self._theme.shared):
            self.calls("shared_text", self._text(dice.randrange(40)), self._chance(0.3))
        for tree, draft in enumerate(drafts):
            self._commit(tree, draft)
        if self._chance(0.1):
            self._open(dice.randrange(2))

    def finish(self) -> None:
        """Ask for what was counted and kept."""
        for tree in range(2):
            self.calls("counts", tree)
        self.calls("texts")

    def _prices(self) -> dict[str, Any]:
        least = self._dice.choice([0.0, 0.01])
        if not self._theme.priced:
            return {"least": least}
        knots = [[0, 1.0], [4, 1.2], [12, 1.5], [36, 3.0]]
        rate, lesson = self._dice.choice([1.0, 3.0]), self._dice.choice([0.0, 0.05])
        return {"knots": knots, "rate": rate, "margin": 0.1, "least": least, "lesson": lesson}

    def _propose(self, tree: int) -> None:
        dice, sources = self._dice, self._theme.sources
        if "window" in sources and self._chance(0.5):
            self.calls("text", tree, "window", self._text(5))
        if "chain" in sources and self._chance(0.5):
            chains = [self._text(dice.randrange(1, 5)) for _ in range(dice.randrange(3))]
            self.calls("chains", tree, chains)
        if "grammar" in sources and self._chance(0.5):
            ahead = self._text(dice.randrange(1, 4))
            masks = [[ahead[:size], self._allowed()] for size in range(len(ahead))]
            all_ = dice.randrange(1, 20)
            usual = [dice.randrange(self._vocab), dice.randrange(1, all_ + 1), all_]
            self.calls("grammar", tree, [self._text(3)], masks, usual)
        if "head" in sources and self._chance(0.7):
            self._add_head_rows(tree)

    def _add_head_rows(self, tree: int) -> None:
        """Rows of a head along the most likely path, or of all nodes of a depth."""
        by_depth = self._chance(0.3)
        self.calls("head", tree, -1, -1, self._row())
        for depth in range(self._dice.randrange(4)):
            unread = self.calls("unread", tree)
            if by_depth or unread is None:
                self.calls("head", tree, depth, -1, self._row())
            else:
                self.calls("head", tree, unread[0], unread[1], self._row())

    def _allowed(self) -> list[int]:
        """Few tokens or many that may follow."""
        count = self._dice.choice([1, 2, 3, 4, self._vocab - 2])
        return sorted(self._dice.sample(range(self._vocab), count))

    def _commit(self, tree: int, draft: Draft) -> None:
        dice = self._dice
        if draft.size > 1 and self._chance(0.2):
            dropped = _with_descendants(draft, [dice.randrange(1, draft.size)])
            self.calls("drop", tree, dropped)
            draft = draft.without(set(dropped))
        leaf = dice.randrange(draft.size)
        path = list(draft.path(leaf))
        tokens = [*draft.tokens_to(leaf), dice.randrange(self._vocab)]
        if path and self._chance(0.2):
            tokens.pop()
        nodes, rows, last = [], [], -1
        if self._chance(0.8):
            others = [node for node in range(1, draft.size) if node not in path]
            nodes = [0, *path, *dice.sample(others, min(2, len(others)))]
            last = dice.choice([-1, len(path)])
            rows = [self._row() for _ in nodes]
        self.calls("commit", tree, tokens, len(path), nodes, rows, last)

    def _row(self) -> list[list[float]]:
        """Probabilities of some tokens; one may be impossible."""
        some = self._dice.sample(range(self._vocab), self._dice.randrange(9))
        power = self._dice.choice([0.5, 4.0])
        weights = [self._dice.random() ** power + 1e-3 for _ in some]
        total = sum(weights) * self._dice.choice([1.0, 2.0])
        row = [
            [token, round(weight / total, 4)] for token, weight in zip(some, weights, strict=True)
        ]
        return [*row, [row[0][0], 0.0]] if len(row) > 3 and self._chance(0.3) else row


def _with_descendants(draft: Draft, nodes: Sequence[int]) -> list[int]:
    """The nodes, and all below them."""
    dropped = set(nodes)
    for node, parent in enumerate(draft.parents, 1):
        if parent in dropped:
            dropped.add(node)
    return sorted(dropped)
