"""Drafts, trees of tokens below the input token, and the base of what makes them.

Every draft, the lookahead window included, is a tree: a node sees the cached tokens and its own
ancestors, and stands at the input's position plus its depth. Mask and positions follow from the
parents, so nothing else has to be said about them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from trtla.settings.drafting import PROPOSERS

if TYPE_CHECKING:
    from numpy import ndarray


class TopRows(NamedTuple):
    """The most probable tokens after some nodes of a draft, best first."""

    nodes: tuple[int, ...]
    ids: ndarray
    """int32 [nodes, count]; -1 where there are fewer."""
    logs: ndarray
    """Logarithms of their probabilities at temperature 1, float32."""
    last: int = -1
    """The row after the last accepted node; -1: it is not among them."""

    def after(self, path: Sequence[int]) -> TopRows:
        """The same, where these nodes were accepted."""
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
    """Nodes whose next token the drafter wants to observe."""
    window_candidates: tuple[int, ...] = ()
    """Nodes before `first_candidate` that may be accepted as well."""
    drawn: bool = False
    """What of the nodes to read is observed: the target's own draw; its argmax if False."""
    draft_probs: ndarray | None = field(default=None, compare=False)
    """What a chain's tokens were drawn from, [tokens, vocab]: it is verified by rejection sampling
    then (Rule B), else by the target's own draws (Rule A)."""
    values: tuple[float, ...] = field(default=(), compare=False)
    """How likely each token is to be accepted, 0 for cells of a window that nothing else proposes;
    empty where the drafter does not say."""
    sources: tuple[int, ...] = field(default=(), compare=False)
    """Places in `settings.drafting.PROPOSERS` of what proposed each token, likewise."""

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Draft:
        return cls(tuple(tokens), tuple(range(len(tokens))))

    @property
    def size(self) -> int:
        return len(self.tokens) + 1

    @property
    def candidates(self) -> Sequence[int]:
        """Nodes that verification may accept."""
        own = range(self.first_candidate, self.size)
        return (*self.window_candidates, *own) if self.window_candidates else own

    @property
    def num_candidates(self) -> int:
        own = len(self.tokens) + 1 - self.first_candidate
        return own + len(self.window_candidates) if self.tokens else 0

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from below the input token down to this one."""
        found: list[int] = []
        while node:
            found.append(node)
            node = self.parents[node - 1]
        return tuple(reversed(found))

    def tokens_to(self, node: int) -> tuple[int, ...]:
        return tuple(self.tokens[one - 1] for one in self.path(node))

    def proposers(self, nodes: Sequence[int]) -> tuple[str, ...]:
        """The names of what proposed these nodes; empty where the drafter does not say."""
        return tuple(PROPOSERS[self.sources[node - 1]] for node in nodes) if self.sources else ()

    @property
    def rows(self) -> tuple[int, ...]:
        """Nodes whose logits are wanted, each once: the input, the candidates, others to read."""
        if not self.window_candidates:
            first = self.first_candidate
            read = (node for node in self.read if 0 < node < first)
            return (0, *range(first, self.size), *read)
        return tuple(dict.fromkeys((0, *self.candidates, *self.read)))

    def cut(self, room: int) -> Draft:
        """What of it feeds at most `room` tokens: its first nodes, the window whole or not at all.

        Where the window goes, the candidates stay that do not continue it.
        """
        if room >= len(self.tokens):
            return self
        if room >= self.first_candidate - 1:
            return self._kept(tuple(range(1, room + 1)), self.first_candidate)
        places = {0: 0}
        for node in range(self.first_candidate, self.size):
            if self.parents[node - 1] in places and len(places) <= room:
                places[node] = len(places)
        return self._kept(tuple(places)[1:], 1)

    def _kept(self, nodes: tuple[int, ...], first_candidate: int) -> Draft:
        """These nodes alone; the parents of each are among them. All is read, or nothing."""
        places = {0: 0} | {node: place for place, node in enumerate(nodes, 1)}
        read = self.read if places.keys() >= set(self.read) else ()
        return replace(
            self,
            tokens=tuple(self.tokens[node - 1] for node in nodes),
            parents=tuple(places[self.parents[node - 1]] for node in nodes),
            first_candidate=first_candidate,
            read=tuple(places[node] for node in read),
            window_candidates=tuple(
                places[node] for node in self.window_candidates if node in places
            ),
            draft_probs=None if self.draft_probs is None else self.draft_probs[: len(nodes)],
            values=tuple(self.values[node - 1] for node in nodes) if self.values else (),
            sources=tuple(self.sources[node - 1] for node in nodes) if self.sources else (),
        )


NO_DRAFT = Draft()
"""Feed the input token alone."""


class Drafter(ABC):
    """Guesses what the target will say: it changes the speed of decoding, never the text.

    One object serves one request. `propose` is called once per generation step and `observe` once
    per forward that committed tokens, the prefill first.
    """

    top_rows = 0
    """How many of the most probable tokens it wants to see after fed nodes, through `saw`."""
    ranks = 0
    """How many it wants to see where a step commits tokens, through `ranked`."""

    @abstractmethod
    def propose(self) -> Draft:
        """The tree for the next step, at most the request's max_draft_len tokens."""

    def skip(self) -> None:  # noqa: B027
        """Nothing is fed in the next step: called instead of `propose`."""

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:  # noqa: B027
        """Learn from a forward.

        Args:
            greedy: the target's argmax after each node of the draft's `read`, in that order, or
                its draws where the draft asks for them; empty for the prefill.
            committed: the tokens that became output, in order.
        """

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:  # noqa: B027
        """Learn the target's most probable tokens; called before `observe` in steps with a draft.

        Args:
            tops: for each committed token, in order, at least `ranks` tokens where the request's
                top-k and top-p leave that many; the most probable first.
        """

    def saw(self, path: Sequence[int], rows: TopRows) -> None:  # noqa: B027
        """Learn the target's most probable tokens; called before `observe`, given `top_rows`.

        Args:
            path: the draft's nodes that were accepted.
            rows: after node 0, the path, and maybe others.
        """

    def saw_hidden(self, states: ndarray) -> None:  # noqa: B027
        """Learn from `Model.taps`, if any, at the input and each accepted node; before `observe`.

        Args:
            states: float [taps, nodes, hidden size].
        """

    def close(self) -> None:  # noqa: B027
        """Release what others wait for, such as blocks of a cache: the request has ended."""


class NoDrafter(Drafter):
    """Plain autoregressive decoding: nothing is proposed."""

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
    """What it added to the output."""


def alike(drafted: Sequence[int], committed: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(drafted, committed, strict=False)
    return next(
        (place for place, (ours, theirs) in enumerate(pairs) if ours != theirs),
        min(len(drafted), len(committed)),
    )


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of every node, node 0 (the input, depth 0) first."""
    result = [0]
    for parent in parents:
        result.append(result[parent] + 1)
    return result


def fit(drafts: list[Draft], room: int) -> list[Draft]:
    """The drafts of a step, cut to `room` tokens in all: each has an equal share, and what short
    ones leave of theirs is for the others."""
    if sum([len(draft.tokens) for draft in drafts]) <= room:
        return drafts
    fitting, left = list(drafts), room
    order = sorted(range(len(drafts)), key=lambda index: len(drafts[index].tokens))
    for place, index in enumerate(order):
        fitting[index] = drafts[index].cut(left // (len(order) - place))
        left -= len(fitting[index].tokens)
    return fitting
