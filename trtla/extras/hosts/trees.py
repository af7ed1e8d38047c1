"""Candidate trees for other libraries' decoding loops: texts of a batch's rows in, drafts out.

A host keeps one `ModelTrees` for each model, opens the rows of a batch, and for each step asks for
drafts and reports what the target made of them. Memory is bounded: a row's tree is freed with the
row, and of ended rows the least recently used texts are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtla.errors import TrtlaError
from trtla.runtime.auto.fixed import FIXED_COSTS, costs_are_fixed, new_policy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Draft, Drafter, TopRows
from trtla.runtime.drafters.lookahead import LookaheadDrafter, new_window
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.models.cpu.native_code import NotCompiled
from trtla.runtime.tree.library import MOST_TOKENS, SharedTrees
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_SOURCES = ("context", "requests", "recycling")
_MOST_NODES = 64
"""Most drafted tokens of a row in a step."""
_NO_TOKEN = -1  # separates texts in trees: never matched, never drafted


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a batch before decoding.

    Args:
        text: its prompt, at least one token, without padding.
        sampling: how the target draws: temperature and seed, by which drafts are ranked.
        output_len: most tokens of its output.
    """

    text: Sequence[int]
    sampling: SamplingParams
    output_len: int


class ModelTrees:
    """The statistics of one model's texts, and the measured costs of its steps.

    Calls may come from several threads.

    Args:
        costs: of steps, until measured ones correct them.
        most_tokens: of ended rows' texts.
    """

    def __init__(
        self, vocab_size: int, costs: CostTable = FIXED_COSTS, most_tokens: int = MOST_TOKENS
    ) -> None:
        self._vocab_size = vocab_size
        self._shared = open_shared(vocab_size, most_tokens)
        self._policy = new_policy(StepCosts(FIXED_COSTS if costs_are_fixed() else costs), None)
        self._lock = threading.Lock()

    def open(self, rows: Sequence[Row], lookahead: LookaheadConfig | None = None) -> RowDrafts:
        """Return the drafts of a batch's rows.

        Args:
            lookahead: draft with this window and pool alone, fed whole in every step.
        """
        with self._lock:
            drafters = [self._drafter(row, lookahead) for row in rows]
        texts = [inside(row.text, self._vocab_size) for row in rows]
        return RowDrafts(self, texts, drafters)

    def _drafter(self, row: Row, triple: LookaheadConfig | None) -> Drafter:
        text = inside(row.text, self._vocab_size)
        if triple is not None:
            known = [token for token in text if token >= 0] or [0]
            window = new_window(triple, known, row.sampling.seed)
            return LookaheadDrafter(triple, known, window)
        tree = self._shared.tree(text, row.sampling, _SOURCES, by_noise=True)
        return TreeDrafter(tree, self._shared, _MOST_NODES, row.output_len)

    def texts(self) -> list[tuple[int, ...]]:
        """Return the texts of ended rows that are drafted from."""
        with self._lock:
            return self._shared.texts()

    def plan(self, drafters: Sequence[Drafter], room: int, chains: bool) -> list[Draft]:
        """Return the drafts of a step.

        Args:
            room: most tokens of all drafts.
            chains: keep the likeliest path of each tree alone.
        """
        with self._lock:
            trees = [drafter for drafter in drafters if isinstance(drafter, TreeDrafter)]
            for tree in trees:
                tree.begin(tree.base())
            self._policy.plan(trees, len(drafters), room)
            for tree in trees if chains else ():
                _keep_chain(tree)
            return [drafter.propose().cut(room) for drafter in drafters]

    def learn(
        self, drafter: Drafter, path: Sequence[int], rows: TopRows | None, read: Sequence[int],
        committed: Sequence[int],
    ) -> None:  # fmt: skip
        """Report a row's step; see `RowDrafts.learn`."""
        with self._lock:
            if rows is not None:
                drafter.saw(path, rows.after(path))
            drafter.observe(read, committed)

    def record(self, fed: int, rows: int, committed: int, seconds: float) -> None:
        """Report the fed and the committed tokens of a step with these many rows, and its time."""
        with self._lock:
            self._policy.record(fed, rows, rows, committed, seconds)

    def close(self, drafter: Drafter, text: Sequence[int]) -> None:
        """End a row: its prompt and its output are drafted from later on."""
        with self._lock:
            self._shared.add_text(text)
            drafter.close()


class RowDrafts:
    """The drafts of the rows of one batch; leaving it ends the rows."""

    def __init__(self, trees: ModelTrees, texts: list[list[int]], drafters: list[Drafter]) -> None:
        self._trees, self._texts, self._drafters = trees, texts, drafters

    def __enter__(self) -> RowDrafts:
        return self

    def __exit__(self, *_: object) -> None:
        for drafter, text in zip(self._drafters, self._texts, strict=True):
            self._trees.close(drafter, text)

    def plan(self, going: Sequence[int], room: int, chains: bool) -> dict[int, Draft]:
        """Return the drafts of the rows that go on, by their indexes."""
        drafters = [self._drafters[row] for row in going]
        return dict(zip(going, self._trees.plan(drafters, room, chains), strict=True))

    def wants_rows(self, row: int) -> bool:
        """Return True if the most probable tokens after each fed node are asked for."""
        return self._drafters[row].top_rows > 0

    def learn(
        self, row: int, path: Sequence[int], rows: TopRows | None, read: Sequence[int],
        committed: Sequence[int],
    ) -> None:  # fmt: skip
        """Report what the target made of a row's draft.

        Args:
            path: the accepted nodes.
            rows: the most probable tokens after the draft's nodes, if they were asked for.
            read: the target's most probable token after each node of the draft's `read`.
            committed: what became output.
        """
        self._trees.learn(self._drafters[row], path, rows, read, committed)

    def record(self, fed: int, rows: int, committed: int, seconds: float) -> None:
        self._trees.record(fed, rows, committed, seconds)


def _keep_chain(drafter: TreeDrafter) -> None:
    draft = drafter.chosen
    dropped = set(range(1, draft.size)) - set(best_path(draft))
    if dropped:
        drafter.tree.drop(sorted(dropped))
        drafter.plan(draft.without(dropped), with_window=False)


def best_path(draft: Draft) -> list[int]:
    """Return the path of best nodes: a draft lists its nodes best first."""
    path = [0]
    for node, parent in enumerate(draft.parents, 1):
        if parent == path[-1]:
            path.append(node)
    return path[1:]


def inside(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Return the tokens, with separators in place of those beyond the vocabulary."""
    return [token if 0 <= token < vocab_size else _NO_TOKEN for token in tokens]


def open_shared(vocab_size: int, most_tokens: int) -> SharedTrees:
    """Return what the trees of a model's rows share.

    Raises:
        TrtlaError: there is no compiled library for this processor.
    """
    try:
        return SharedTrees(vocab_size, most_tokens)
    except NotCompiled as error:
        message = f"there are no compiled candidate trees: {error}"
        raise TrtlaError(message, error.hint) from None
