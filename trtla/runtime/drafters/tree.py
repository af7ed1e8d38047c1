"""The candidate tree as a request's drafter: all sources of drafts, and the last step's outcome.

`TreePolicy` chooses the nodes to feed, for all sequences of a step together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from numpy import ndarray

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, TopRows
from trtla.runtime.drafters.grammar import GrammarGuide
from trtla.runtime.drafters.head import HeadDrafter
from trtla.runtime.drafters.lookahead import DraftTree, LookaheadDrafter, LookaheadWindow
from trtla.runtime.grammar import GrammarState
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.library import READ, SharedTrees, Tree
from trtla.settings.drafting import PROPOSERS

_WINDOW = PROPOSERS.index("window")
FIRST_WORTH = 0.5  # tokens a step that a request's drafts bring, before any plan
_MEMORY = 1.0 / 8.0  # weight of a plan in the average
_LONGEST = 16  # steps without a plan


class Backoff:
    """Skips a request's plans for one step, two, four and so on, as long as they bring little.

    Such steps feed the input token alone, and its rows are not read.

    Args:
        worth: expected tokens a step of plans, less the cost of feeding them.
    """

    def __init__(self, worth: float = FIRST_WORTH) -> None:
        self._worth = worth
        self._length = self._left = 0

    def is_due(self) -> bool:
        """Return True if the next step is planned; called once a step."""
        self._left -= 1
        return self._left < 0

    def planned(self, worth: float, cost: float) -> None:
        self._worth += (worth - self._worth) * _MEMORY
        skips = self._worth < cost
        self._length = min(max(1, 2 * self._length), _LONGEST) if skips else 0
        self._left = self._length


class TreeDrafter(Drafter):
    """The drafter of one request.

    Args:
        tree: its candidate tree, which knows the prompt.
        shared: the state shared by the trees of all requests.
        most_nodes: most tokens of a draft.
        output_len: most tokens of the output.
        window: lookahead's, fed in steps when it pays.
        fixed: lookahead with an explicit triple, fed whole in every step.
        drawn: True if the target draws the cells of `window`.
        others: drafters whose drafts become branches of the tree, the most trusted first.
        chain_len: skip further drafters once they have proposed this many tokens together.
        head: a trained head, which adds rows to the tree.
    """

    def __init__(
        self,
        tree: Tree,
        shared: SharedTrees,
        most_nodes: int,
        output_len: int,
        window: LookaheadWindow | None = None,
        *,
        fixed: LookaheadDrafter | None = None,
        drawn: bool = False,
        others: Sequence[Drafter] = (),
        chain_len: int = 1,
        head: HeadDrafter | None = None,
    ) -> None:
        self.top_rows = READ
        self.ranks = max((other.ranks for other in others), default=0)
        self.backoff: Backoff | None = None
        """Created by the policy at the first plan."""
        self.window, self.fixed, self.others = window, fixed, tuple(others)
        self.chosen = NO_DRAFT
        """Nodes of its tree that the next step feeds."""
        self.output: list[int] = []
        self.head = head
        self._watching = self.others if head is None else (*self.others, head)
        self.fed_window = self.had_chain = self.had_head = False
        self._tree, self._shared = tree, shared
        self._most_nodes, self._left = most_nodes, output_len
        self._drawn, self._chain_len = drawn, chain_len
        self._base = self._planned = NO_DRAFT
        """The draft that is fed in any case, and the whole draft."""
        self._places: dict[int, int] = {}
        """Nodes of the tree by nodes of the draft, if they differ."""
        self._rows: TopRows | None = None
        self._accepted = 0
        self._last = 0
        self._missed: list[int] = []
        """Committed tokens that the tree has not seen yet."""
        self._gained: dict[str, float] = {}
        self._failure: Exception | None = None
        self.constraint: Callable[[], GrammarState | None] | None = None
        """The request's grammar behind its text, if it has one."""
        self._guide: GrammarGuide | None = None
        """Its masks are the tree's as well, until that has seen the step's tokens."""

    @property
    def tree(self) -> Tree:
        """Its candidate tree, up to date with the text."""
        if self._missed:
            self._tree.commit(self._missed)
            self._missed.clear()
            self._guide = None
        return self._tree

    @property
    def has_unknown_gain(self) -> bool:
        """True if a window, a chain or a head took part: their gain is not known in advance."""
        return self.fed_window or self.had_chain or (self.had_head and bool(self.chosen.tokens))

    @property
    def has_only_tree(self) -> bool:
        """True if nothing but the tree's own sources proposes."""
        return not (self.others or self.head or self.fixed or self.constraint)

    def counts(self) -> dict[str, SourceCounts]:
        """Return the counts of each source, those of a chain by the name of its only drafter."""
        chain = self.others[0].source if len(self.others) == 1 else "chain"
        counts = self._tree.counts().items()
        return {chain if name == "chain" else name: count for name, count in counts}

    @property
    def most_nodes(self) -> int:
        """Most nodes of the next draft besides the base; none if the text ends with one token."""
        return max(0, self._most_nodes - len(self._base.tokens)) if self._left > 1 else 0

    @property
    def most_depth(self) -> int:
        """Tokens that can be accepted before the output's last one."""
        return self._left - 1

    @property
    def longest_path(self) -> int:
        """Most nodes of the next draft that are below each other."""
        return min(self.most_nodes, self.most_depth)

    @property
    def window_tokens(self) -> int:
        """Tokens of its window, besides the input token; 0 without a window."""
        return self.window.size if self.window and self._left > 1 else 0

    def base(self) -> Draft:
        """Return the draft that is fed in any case: lookahead's with an explicit triple."""
        return self.fixed.propose() if self.fixed else NO_DRAFT

    def begin(self, base: Draft) -> None:
        """Begin a step that feeds the base, possibly cut, and no nodes unless they are planned."""
        self._base = self._planned = base
        self._places = {0: 0} if base.tokens else {}

    def look(self, draft: Draft) -> bool:
        """Have the tree follow the grammar along a draft; True if it should be planned again.

        A failure is the request's alone: `propose` raises it.
        """
        if self.constraint is None:
            return False
        try:
            tree = self.tree
            if self._guide is None:
                state = self.constraint()
                if state is None:
                    return False
                self._guide = GrammarGuide(tree, state, self._shared.usual)
            return self._guide.look(draft)
        except Exception as error:
            self._failure = error
            return False

    def plan(self, chosen: Draft, with_window: bool, *, learns: bool = True) -> None:
        """Feed these nodes of the tree in the next step, and the window if requested.

        Nodes that the grammar forbids are left out.

        Args:
            learns: read the input token's row even if no node is fed.
        """
        if self._guide is not None:
            chosen = self._guide.allowed(chosen)
        self.chosen = chosen
        self.had_chain &= bool(chosen.tokens)
        self.fed_window = with_window and self.window is not None
        if self.fed_window and self.window is not None:
            self._base = self.window.draft(drawn=self._drawn)
        self._planned = self._merged(chosen) if self._base.tokens else chosen
        self.top_rows = READ if learns or self._planned.tokens else 0

    def _merged(self, chosen: Draft) -> Draft:
        base = self._base
        merged, first = DraftTree(base.tokens, base.parents), base.first_candidate
        nodes = merged.merge_tree(chosen.tokens, chosen.parents)
        self._places = {node: index for index, node in enumerate(nodes)}
        inside = (node for node in nodes if 0 < node < first)
        values, sources = [0.0] * len(merged.tokens), [_WINDOW] * len(merged.tokens)
        for node, value, source in zip(nodes[1:], chosen.values, chosen.sources, strict=True):
            values[node - 1], sources[node - 1] = value, source
        return Draft(
            tuple(merged.tokens),
            tuple(merged.parents),
            first,
            base.read,
            tuple(dict.fromkeys((*base.window_candidates, *inside))),
            base.drawn,
            values=tuple(values),
            sources=tuple(sources),
        )

    def propose(self) -> Draft:
        """Return the draft planned for this step.

        Raises:
            Exception: another drafter's, raised when it drafted for this step.
        """
        if self._failure is not None:
            raise self._failure
        return self._planned

    def draft_chains(self, wanted: bool) -> None:
        """Let the other drafters propose for the next step, until there are enough tokens."""
        chains: list[tuple[int, ...]] = []
        try:
            for other in self.others:
                if wanted and sum(map(len, chains)) < self._chain_len:
                    chains.append(other.propose().tokens)
                else:
                    other.skip()
        except Exception as error:  # only this request fails: `propose` raises it
            self._failure = error
        self.had_chain = any(chains)
        # These chains do not judge tokens that the tree has missed.
        tree = self.tree if self.had_chain else self._tree
        tree.set_chains(filter(None, chains))

    def gained(self, source: str) -> float:
        """Return accepted tokens since the last call that only this source proposed first."""
        now = self._tree.gained(source)
        before = self._gained.get(source, 0.0)
        self._gained[source] = now
        return now - before

    def saw(self, path: Sequence[int], rows: TopRows) -> None:
        """Keep the rows until the committed tokens are known; a base's rows go to the tables."""
        self._accepted, self._rows = len(path), rows
        if not self._base.tokens:
            return
        self._accepted = sum(1 for _ in takewhile(self._places.__contains__, path))
        draft = self._planned
        tokens = (self._last, *draft.tokens)
        pairs = [
            token
            for node in rows.nodes
            for token in (tokens[draft.parents[node - 1]] if node else -1, tokens[node])
        ]
        self._shared.learn(pairs, rows)
        self._rows = None

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:
        for other in self.others:
            if other.ranks:
                other.ranked(tops)

    @property
    def wants_states(self) -> bool:  # type: ignore[override]
        return any(other.wants_states for other in self._watching)

    def saw_hidden(self, first: int, states: ndarray) -> None:
        for other in self._watching:
            if other.wants_states:
                other.saw_hidden(first, states)

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        if not committed:  # the target had no answer
            return
        if self._guide is not None:
            self._guide.saw(committed)
        if self.fixed is not None:
            self.fixed.observe(greedy, committed)
        elif greedy and self.window is not None:
            for gram in self.window.advance(self._last, greedy):
                self._tree.add_text("window", gram)
        has_window = bool(self._base.tokens) and self.fixed is None
        if self._rows is None and not (self.chosen.tokens or has_window):
            self._missed += committed
        else:
            self.tree.commit(committed, min(self._accepted, len(committed)), self._rows)
            self._guide = None
        for other in self._watching:
            other.observe((), committed)
        self._left -= len(committed)
        self.output += committed
        self._last = committed[-1]
        self._rows, self._accepted, self.top_rows = None, 0, 0
        self.chosen = self._base = self._planned = NO_DRAFT

    def close(self) -> None:
        self._shared.add_text(self.output)
        for other in self._watching:
            other.close()
