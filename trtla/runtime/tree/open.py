"""Who computes candidate trees: C++, or plain Python where there is no compiler.

Both take the same nodes. Only what drafting costs differs, and adaptive requests see that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trtla.runtime.costs import FREE, NodePrices
from trtla.runtime.draft import Draft, TopRows
from trtla.runtime.models.cpu.compiler import NotCompiled
from trtla.runtime.models.cpu.native_code import tell_slower
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.fallback import PlainTrees
from trtla.runtime.tree.library import SharedTrees

if TYPE_CHECKING:
    from trtla.settings.sampling import SamplingParams


class Tree(Protocol):
    """One request's tree."""

    @property
    def handle(self) -> Any:
        """How its planner knows it."""

    def gained(self, source: str) -> float:
        """Accepted tokens that a source alone held for likeliest."""

    def counts(self) -> dict[str, SourceCounts]:
        """What its sources did so far, those that proposed something."""

    def add_text(self, source: str, tokens: Sequence[int]) -> None:
        """Draft from a text: of the source `expected` or `window`."""

    def set_chain(self, tokens: Sequence[int], chances: Sequence[float]) -> None:
        """What another drafter says of this step, and how sure it is of each token."""

    def commit(self, tokens: Sequence[int], accepted: int = 0, rows: TopRows | None = None) -> None:
        """The text has gone on.

        Args:
            accepted: the first of these tokens, which were nodes of the planned draft.
            rows: what the target held for likely after nodes of it, the path's last one at
                `rows.last`.
        """


class Planner(Protocol):
    """Chooses the nodes of a step, of trees of its own kind."""

    def plan(
        self,
        trees: Sequence[Tree],
        most_nodes: Sequence[int],
        most_depth: Sequence[int],
        most: int,
        prices: NodePrices = FREE,
    ) -> list[Draft]:
        """The nodes of each tree that pay, best first.

        Args:
            most_nodes: of each tree; `most_depth` likewise.
            most: nodes of all trees.
        """


class Trees(Protocol):
    """What the trees of all requests share: rows, other requests' texts, chances."""

    def add_text(self, tokens: Sequence[int], *, kept: bool = False) -> None:
        """Draft from a text in all requests; the least recently used texts of its kind go.

        Args:
            kept: no output makes it go. Outputs have what these texts leave of the room, and at
                least a quarter of it.
        """

    def texts(self) -> list[tuple[int, ...]]:
        """The texts that are drafted from in all requests."""

    def tree(
        self,
        text: Sequence[int],
        sampling: SamplingParams,
        sources: Sequence[str],
        by_noise: bool,
        unplaced: int = 0,
    ) -> Tree:
        """The tree of a request whose text so far is this.

        Args:
            sources: of drafts, names in `settings.drafting.SOURCES`.
            by_noise: rank a sampled request's proposals with the noise that draws its tokens.
            unplaced: the first tokens of the text that an encoder reads: they have no positions.
        """

    def learn(self, pairs: Sequence[int], rows: TopRows) -> None:
        """Take rows that stand after pairs of tokens: two numbers for each row."""

    def planner(self) -> Planner:
        """Chooses the nodes of these trees."""


def open_trees(vocab_size: int) -> Trees:
    """Trees of requests over this vocabulary, as fast as this machine can have them.

    Without a compiler drafting is slower and the text the same; a note says so.
    """
    try:
        return SharedTrees(vocab_size)
    except NotCompiled as error:
        tell_slower(error, "drafts take about 50 times longer")
        return PlainTrees(vocab_size)
