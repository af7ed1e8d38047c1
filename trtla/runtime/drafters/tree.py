"""The candidate tree as a request's drafter: all sources of drafts, and what came of the last step.

Which nodes are fed is chosen for all sequences of a step together, by `TreePolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, TopRows
from trtla.runtime.drafters.lookahead import window_tree
from trtla.runtime.drafters.window import LookaheadWindow
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.library import READ
from trtla.runtime.tree.open import Planner, Tree, Trees
from trtla.settings.drafting import PROPOSERS

_WINDOW = PROPOSERS.index("window")
_FIRST_CHANCE = 0.5  # of a token that another drafter proposes


class TreeDrafter(Drafter):
    """The drafter of one request.

    Args:
        tree: its candidate tree, which knows the prompt.
        shared: what the trees of all requests share.
        most_nodes: most tokens of a draft.
        output_len: most tokens of the output.
        window: lookahead's, where it may be fed.
        drawn: whether cells of the window are drawn by the target.
        others: drafters whose drafts become branches of the tree.
    """

    def __init__(
        self,
        tree: Tree,
        shared: Trees,
        most_nodes: int,
        output_len: int,
        window: LookaheadWindow | None = None,
        ngram: int = 1,
        *,
        drawn: bool = False,
        others: Sequence[Drafter] = (),
    ) -> None:
        self.top_rows = READ
        self.planned = NO_DRAFT
        """What the next step feeds."""
        self._tree, self._shared = tree, shared
        self._most_nodes, self._left = most_nodes, output_len
        self._window, self._ngram, self._drawn = window, ngram, drawn
        self.others = tuple(others)
        self._places: dict[int, int] = {}
        """Where a window was fed: nodes of the tree by nodes of the draft."""
        self._rows: TopRows | None = None
        self._accepted = 0
        self._last = 0
        self._missed: list[int] = []
        """Committed tokens that the tree has not seen yet."""
        self.output: list[int] = []
        self.fed_window = self.had_chain = False
        self._gained: dict[str, float] = {}
        self._failure: Exception | None = None

    @property
    def tree(self) -> TreeDrafter:
        """Itself."""
        return self

    @property
    def handle(self) -> Tree:
        """Its candidate tree, up to date with the text."""
        if self._missed:
            self._tree.commit(self._missed)
            self._missed.clear()
        return self._tree

    def planner(self) -> Planner:
        """Chooses the nodes of trees such as its own."""
        return self._shared.planner()

    def counts(self) -> dict[str, SourceCounts]:
        """What its sources did so far."""
        return self._tree.counts()

    @property
    def most_nodes(self) -> int:
        """Most nodes of the next draft; none where the text ends with the next token."""
        return self._most_nodes if self._left > 1 else 0

    @property
    def most_depth(self) -> int:
        """Tokens that can be accepted before the output's last one."""
        return self._left - 1

    @property
    def window(self) -> LookaheadWindow | None:
        """Its window as it stands, fed or not: read it, do not change it."""
        return self._window

    @property
    def window_tokens(self) -> int:
        """Of its window, beside the input token; 0: it has none."""
        return self._window.size if self._window and self._left > 1 else 0

    def propose(self) -> Draft:
        """The nodes that were chosen for this step.

        Raises:
            Exception: what another drafter has raised when it was asked for this step.
        """
        if self._failure is not None:
            raise self._failure
        return self.planned

    def plan(self, draft: Draft, with_window: bool) -> None:
        """Feed these nodes in the next step, and the window with them if wanted."""
        self.planned, self._places, self.top_rows = draft, {}, READ
        self.fed_window = with_window
        self.had_chain &= bool(draft.tokens)
        if with_window and self._window is not None:
            self.planned = self._with_window(draft, self._window)

    def _with_window(self, draft: Draft, window: LookaheadWindow) -> Draft:
        tree, accepted, read = window_tree(window, self._ngram)
        first = len(tree.tokens) + 1
        nodes = [0]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            nodes.append(tree.merge((token,), nodes[parent]))
        self._places = {node: place for place, node in enumerate(nodes)}
        inside = dict.fromkeys((*accepted, *(node for node in nodes if 0 < node < first)))
        found = (tuple(tree.tokens), tuple(tree.parents))
        values, sources = [0.0] * len(tree.tokens), [_WINDOW] * len(tree.tokens)
        for node, value, source in zip(nodes[1:], draft.values, draft.sources, strict=True):
            values[node - 1], sources[node - 1] = value, source
        return Draft(
            *found,
            first,
            read,
            tuple(inside),
            self._drawn,
            values=tuple(values),
            sources=tuple(sources),
        )

    def draft_chain(self, wanted: bool) -> None:
        """Let the other drafters propose for the next step; the first draft is taken."""
        chain: tuple[int, ...] = ()
        try:
            for other in self.others:
                if chain or not wanted:
                    other.skip()
                else:
                    chain = other.propose().tokens
        except Exception as error:  # this request's alone: `propose` raises it
            self._failure = error
        self.had_chain = bool(chain)
        # What the tree has missed is not judged by this chain.
        tree = self.handle if chain else self._tree
        tree.set_chain(chain, [_FIRST_CHANCE] * len(chain))

    def gained(self, source: str) -> float:
        """Accepted tokens since the last call that a source alone held for likeliest."""
        now = self._tree.gained(source)
        before = self._gained.get(source, 0.0)
        self._gained[source] = now
        return now - before

    def saw(self, path: Sequence[int], rows: TopRows) -> None:
        """Keep the rows until the committed tokens are known; a window's go to the tables."""
        self._accepted, self._rows = len(path), rows
        if not self._places:
            return
        self._accepted = sum(1 for _ in takewhile(self._places.__contains__, path))
        draft = self.planned
        tokens = (self._last, *draft.tokens)
        pairs = [
            token
            for node in rows.nodes
            for token in (tokens[draft.parents[node - 1]] if node else -1, tokens[node])
        ]
        self._shared.learn(pairs, rows)
        self._rows = None

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Go on with the text, and learn from what was proposed."""
        if not committed:  # the target had no answer
            return
        if greedy and self._window is not None:
            for gram in self._window.advance(self._last, greedy):
                self._tree.add_text("window", gram)
        if self._rows is None and not self.planned.tokens:
            self._missed += committed
        else:
            self.handle.commit(committed, min(self._accepted, len(committed)), self._rows)
        for other in self.others:
            other.observe((), committed)
        self._left -= len(committed)
        self.output += committed
        self._last = committed[-1]
        self.planned, self._rows, self._accepted, self.top_rows = NO_DRAFT, None, 0, 0

    def close(self) -> None:
        """The request has ended: its output serves others."""
        self._shared.add_text(self.output)
        for other in self.others:
            other.close()
