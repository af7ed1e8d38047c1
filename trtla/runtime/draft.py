"""Drafts, trees of tokens below the input token, and the base class of drafters.

Every draft, the lookahead window included, is a tree: a node sees the cached tokens and its own
ancestors, and stands at the input's position plus its depth. Mask and positions follow from the
parents, so nothing else has to be said about them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from trtla.settings.drafting import PROPOSERS

if TYPE_CHECKING:
    from numpy import ndarray


class TopRows(NamedTuple):
    """The most probable tokens after some nodes of a draft, best first."""

    nodes: tuple[int, ...]
    ids: ndarray
    """int32 [nodes, count]; -1 after the last one of a shorter row."""
    logs: ndarray
    """Logarithms of their probabilities at temperature 1, float32."""
    last: int = -1
    """The row after the last accepted node; -1: not included."""

    def after(self, path: Sequence[int]) -> TopRows:
        """Return the same rows, with this path of accepted nodes."""
        last = self.nodes.index(path[-1]) if path else 0
        return TopRows(self.nodes, self.ids, self.logs, last)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens to feed after the input token in one generation step.

    Node 0 is the input token; node i >= 1 carries `tokens[i - 1]` below node `parents[i - 1] < i`.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    first_candidate: int = 1
    """Nodes from here on may be accepted; those before (the window) only feed the drafter."""
    read: tuple[int, ...] = ()
    """Nodes whose next token the drafter observes."""
    window_candidates: tuple[int, ...] = ()
    """Nodes before `first_candidate` that may be accepted as well."""
    drawn: bool = False
    """Observe the target's own draws after the nodes in `read`; if False, its argmax."""
    draft_probs: ndarray | None = field(default=None, compare=False)
    """The distributions that a chain's tokens were drawn from, [tokens, vocab]: rejection sampling
    verifies it then (Rule B), else the target's own draws (Rule A)."""
    values: tuple[float, ...] = field(default=(), compare=False)
    """The chance of each token to be accepted, 0 for cells of a window that nothing else proposes;
    empty if the drafter does not estimate it."""
    sources: tuple[int, ...] = field(default=(), compare=False)
    """Indexes in `settings.drafting.PROPOSERS` of each token's proposer; empty likewise."""

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        return cls(tuple(tokens), tuple(range(len(tokens))))

    @property
    def size(self) -> int:
        return len(self.tokens) + 1

    @property
    def candidates(self) -> Sequence[int]:
        """Nodes that verification may accept."""
        later = range(self.first_candidate, self.size)
        return (*self.window_candidates, *later) if self.window_candidates else later

    @property
    def num_candidates(self) -> int:
        count = len(self.tokens) + 1 - self.first_candidate
        return count + len(self.window_candidates) if self.tokens else 0

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from below the input token down to this one."""
        nodes: list[int] = []
        while node:
            nodes.append(node)
            node = self.parents[node - 1]
        return tuple(reversed(nodes))

    def tokens_to(self, node: int) -> tuple[int, ...]:
        return tuple(self.tokens[ancestor - 1] for ancestor in self.path(node))

    def proposers(self, nodes: Sequence[int]) -> tuple[str, ...]:
        """Return the names of the proposers of these nodes; empty if the drafter records none."""
        return tuple(PROPOSERS[self.sources[node - 1]] for node in nodes) if self.sources else ()

    def children(self) -> dict[tuple[int, int], list[int]]:
        """Return the candidates by their parent and token; a window may have several alike."""
        children: dict[tuple[int, int], list[int]] = {}
        for node in self.candidates:
            children.setdefault((self.parents[node - 1], self.tokens[node - 1]), []).append(node)
        return children

    @property
    def rows(self) -> tuple[int, ...]:
        """Nodes whose logits are wanted, each once: the input, the candidates, then `read`."""
        if not self.window_candidates:
            first = self.first_candidate
            read = (node for node in self.read if 0 < node < first)
            return (0, *range(first, self.size), *read)
        return tuple(dict.fromkeys((0, *self.candidates, *self.read)))

    def cut(self, room: int) -> Draft:
        """Cut to at most `room` tokens: the first nodes, the window whole or not at all.

        Without the window, only candidates that do not continue it stay.
        """
        if room >= len(self.tokens):
            return self
        if room >= self.first_candidate - 1:
            return self._kept(tuple(range(1, room + 1)), self.first_candidate)
        kept = {0: 0}
        for node in range(self.first_candidate, self.size):
            if self.parents[node - 1] in kept and len(kept) <= room:
                kept[node] = len(kept)
        return self._kept(tuple(kept)[1:], 1)

    def without(self, nodes: Collection[int]) -> Draft:
        """Leave out some nodes, all that are below them included; none is of a window."""
        kept = tuple(node for node in range(1, self.size) if node not in nodes)
        return self._kept(kept, self.first_candidate)

    def _kept(self, nodes: tuple[int, ...], first_candidate: int) -> Draft:
        """Keep these nodes alone, which include their parents. All of `read` stays, or none."""
        indexes = {0: 0} | {node: index for index, node in enumerate(nodes, 1)}
        read = self.read if indexes.keys() >= set(self.read) else ()
        return replace(
            self,
            tokens=tuple(self.tokens[node - 1] for node in nodes),
            parents=tuple(indexes[self.parents[node - 1]] for node in nodes),
            first_candidate=first_candidate,
            read=tuple(indexes[node] for node in read),
            window_candidates=tuple(
                indexes[node] for node in self.window_candidates if node in indexes
            ),
            draft_probs=None if self.draft_probs is None else self.draft_probs[: len(nodes)],
            values=tuple(self.values[node - 1] for node in nodes) if self.values else (),
            sources=tuple(self.sources[node - 1] for node in nodes) if self.sources else (),
        )


NO_DRAFT = Draft()
"""Feed the input token alone."""


class Drafter(ABC):
    """Proposes the target's next tokens: it changes the speed of decoding, never the text.

    One object serves one request. `propose` is called once per generation step and `observe` once
    per forward that committed tokens, the prefill first.
    """

    source = "chain"
    """The name that its tokens are counted by in a tree that no other drafter proposes for."""
    top_rows = 0
    """Most probable tokens that `saw` receives after each fed node."""
    ranks = 0
    """Most probable tokens that `ranked` receives for each committed token."""
    wants_states: bool = False
    """True if `saw_hidden` is called. It may change from step to step; steps in which no drafter
    wants them compute none."""

    @abstractmethod
    def propose(self) -> Draft:
        """Return the tree for the next step, at most the request's max_draft_len tokens."""

    def skip(self) -> None:  # noqa: B027
        """Propose nothing in the next step: called instead of `propose`."""

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:  # noqa: B027
        """Learn from a forward.

        Args:
            greedy: the target's argmax after each node of the draft's `read`, in that order, or its
                draws if the draft asks for them; empty for the prefill.
            committed: the tokens that became output, in order.
        """

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:  # noqa: B027
        """Learn the target's most probable tokens; called before `observe` in steps with a draft.

        Args:
            tops: for each committed token, in order, at least `ranks` tokens where the request's
                top-k and top-p leave that many; the most probable first.
        """

    def saw(self, path: Sequence[int], rows: TopRows) -> None:  # noqa: B027
        """Learn the target's most probable tokens, if `top_rows`; called before `observe`.

        Args:
            path: the draft's nodes that were accepted.
            rows: after node 0, the path, and possibly other nodes.
        """

    def saw_hidden(self, first: int, states: ndarray) -> None:  # noqa: B027
        """Learn from the states of `Model.taps`, if `wants_states`; called before `observe`.

        A drafter that always wants them gets those of every token of the text but the newest, once
        and in order; the newest was chosen from the last one. A prompt comes in parts, and so does
        a text that goes on after an interruption, whose tokens were observed before. Tokens of
        kept blocks are not fed: no states of these come.

        Args:
            first: the place in the text of the first token.
            states: float32 [taps, tokens, hidden size] of it and the tokens behind it, which the
                next step may overwrite.
        """

    def close(self) -> None:  # noqa: B027
        """Release resources such as blocks of a cache: the request has ended."""


class NoDrafter(Drafter):
    """Plain autoregressive decoding without proposals."""

    def propose(self) -> Draft:
        return NO_DRAFT


@dataclass(frozen=True, slots=True)
class RecordedForward:
    """One forward of the target."""

    draft: Draft
    """Empty for the prefill."""
    observed: tuple[int, ...]
    """The target's tokens after each node of the draft's `read`."""
    committed: tuple[int, ...]
    """The tokens that it added to the output."""


def alike(drafted: Sequence[int], committed: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    pairs = zip(drafted, committed, strict=False)
    return next(
        (index for index, (ours, theirs) in enumerate(pairs) if ours != theirs),
        min(len(drafted), len(committed)),
    )


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of every node, node 0 (the input, depth 0) first."""
    result = [0]
    for parent in parents:
        result.append(result[parent] + 1)
    return result


def fit(drafts: list[Draft], room: int) -> list[Draft]:
    """Cut the drafts of a step to `room` tokens in all: each has an equal share, and longer ones
    get what shorter ones leave."""
    if sum([len(draft.tokens) for draft in drafts]) <= room:
        return drafts
    fitting, left = list(drafts), room
    order = sorted(range(len(drafts)), key=lambda index: len(drafts[index].tokens))
    for rank, index in enumerate(order):
        fitting[index] = drafts[index].cut(left // (len(order) - rank))
        left -= len(fitting[index].tokens)
    return fitting
