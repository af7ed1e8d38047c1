"""Drafts for hosts that show a request's text but no logits: a chain or a tree a request.

So the sources are texts: the request's own and the outputs of requests that have ended. A chain
takes the likeliest child of each node in the request's candidate tree.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.extras.hosts.trees import best_path, inside, open_shared
from trtla.runtime.costs import NodePrices
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.tree.library import Planner, Tree
from trtla.settings.sampling import SamplingParams

_SOURCES = ("context", "requests")
_GREEDY = SamplingParams()  # tokens are ranked by their chances, also for requests that sample
_MOST_NODES = 512  # of a tree that a chain is taken from
_COMPARED = 64  # tokens compared to recognise a request's text


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """The settings of drafting.

    Args:
        max_draft_len: most tokens of a chain.
        vocab_size: of the target; ids outside it (images in a prompt) are not drafted.
        least_chance: a chain ends before a token that is accepted less often than this.
        other_tokens: of ended requests to draft from; 0: each request's own text alone.
        sampled: also draft for requests that sample.
        idle: passes without a request after which it counts as ended.
    """

    max_draft_len: int
    vocab_size: int
    least_chance: float = 0.05
    other_tokens: int = 200_000
    sampled: bool = False
    idle: int = 1000

    def __post_init__(self) -> None:
        least = {"max_draft_len": 1, "vocab_size": 1, "other_tokens": 0, "idle": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise UsageError(f"{name} is {value!r}", f"use a whole number from {lowest} on")
        if not 0.0 < self.least_chance < 1.0:
            raise UsageError(
                f"least_chance is {self.least_chance!r}",
                "use a number between 0 and 1, such as 0.05",
            )


@dataclass(slots=True)
class ChainRequest:
    """A request for a chain: its tokens so far, and how many more it may have.

    Args:
        request: its number; None: it is recognised by its tokens.
        tokens: anything that slices and iterates as a list does, such as a memoryview.
    """

    request: int | None
    tokens: Sequence[int]
    prompt_len: int
    room: int


@dataclass(slots=True)
class _Known:
    tree: Tree
    size: int
    tail: list[int]
    """The last tokens of the text, as the host gave them."""
    output: array[int]
    draft: Draft = NO_DRAFT
    seen: int = 0

    def goes_on_as(self, tokens: Sequence[int]) -> bool:
        """Return True if a text continues the known one; an evicted request may come back
        shorter."""
        size = self.size
        if len(tokens) < size or tokens[size - 1] != self.tail[-1]:
            return False
        return list(tokens[size - len(self.tail) : size]) == self.tail

    def commit(self, tokens: Sequence[int], inner: Sequence[int]) -> None:
        """Append to the text, and learn from every token.

        Args:
            inner: the same tokens, with separators in place of those beyond the vocabulary.
        """
        accepted = _accepted(self.draft, inner)
        if inner:
            self.tree.commit(inner[: accepted + 1], accepted)
        for token in inner[accepted + 1 :]:
            self.tree.commit((token,))
        self.size += len(tokens)
        self.tail = [*self.tail, *tokens][-_COMPARED:]
        self.output.extend(inner)


class Chains:
    """The candidate trees of all requests. Calls may come from several threads.

    The same calls in the same order give the same chains, so that the ranks of a tensor-parallel
    model agree.
    """

    def __init__(self, settings: ChainSettings) -> None:
        self._settings = settings
        # No rows of logits are kept, so their vocabulary size does not matter.
        self._shared = open_shared(1, max(1, settings.other_tokens))
        self._planner = Planner()
        self._requests: OrderedDict[int, _Known] = OrderedDict()
        self._now = self._named = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._requests)

    def draft(self, requests: Sequence[ChainRequest]) -> list[list[int]]:
        """Return the chain of each request, and end those that have been idle for too long."""
        return [list(draft.tokens) for draft in self._step(requests, self._plan_chains)]

    def trees(self, requests: Sequence[ChainRequest]) -> list[Draft]:
        """Return a tree for each request, filled to its room; end idle ones as `draft` does."""
        return self._step(requests, self._plan_trees)

    def _step(
        self, requests: Sequence[ChainRequest],
        plan: Callable[[list[Tree], list[int]], list[Draft]],
    ) -> list[Draft]:  # fmt: skip
        with self._lock:
            self._now += 1
            known = [self._follow(request) for request in requests]
            self._forget_idle()
            rooms = [max(0, request.room) for request in requests]
            drafts = plan([one.tree for one in known], rooms) if known else []
            for one, draft in zip(known, drafts, strict=True):
                one.draft = draft
            return drafts

    def end(self, request: int, tokens: Sequence[int]) -> None:
        """End a request, or its stay in the cache: free its tree, and draft from its output."""
        with self._lock:
            known = self._requests.pop(request, None)
            if known is not None:
                if known.goes_on_as(tokens):
                    self._commit(known, tokens)
                self._add_output(known)

    def _follow(self, request: ChainRequest) -> _Known:
        number = request.request
        if number is None:
            number = self._recognise(request.tokens)
        known = self._requests.get(number)
        if known is not None and known.goes_on_as(request.tokens):
            self._commit(known, request.tokens)
        else:
            known = self._requests[number] = self._new(request)
        known.seen = self._now
        self._requests.move_to_end(number)
        return known

    def _recognise(self, tokens: Sequence[int]) -> int:
        """Return the number of the request whose text this one continues, or a new one.

        The order of the known ones is that of the pass before, so the first is mostly it.
        """
        for number, known in self._requests.items():
            if known.seen < self._now and known.goes_on_as(tokens):
                return number
        self._named -= 1  # those of hosts are not negative
        return self._named

    def _new(self, request: ChainRequest) -> _Known:
        text = inside(request.tokens, self._settings.vocab_size)
        tree = self._shared.tree(text, _GREEDY, _SOURCES, False)
        tail = list(request.tokens[-_COMPARED:])
        return _Known(tree, len(text), tail, array("i", text[request.prompt_len :]))

    def _commit(self, known: _Known, tokens: Sequence[int]) -> None:
        added = tokens[known.size :]
        known.commit(added, inside(added, self._settings.vocab_size))

    def _plan_chains(self, trees: list[Tree], rooms: list[int]) -> list[Draft]:
        # At most 1 / least_chance nodes of a depth are that likely, so the chain is among them.
        share = int(1.0 / self._settings.least_chance) + 1
        nodes = [min(_MOST_NODES, room * share) for room in rooms]
        prices = NodePrices(least=self._settings.least_chance)
        drafts = self._planner.plan(trees, nodes, rooms, sum(nodes), prices)
        return [
            Draft.chain([draft.tokens[node - 1] for node in best_path(draft)]) for draft in drafts
        ]

    def _plan_trees(self, trees: list[Tree], rooms: list[int]) -> list[Draft]:
        return self._planner.plan(trees, rooms, rooms, sum(rooms))

    def _forget_idle(self) -> None:
        while self._requests:
            request, known = next(iter(self._requests.items()))
            if self._now - known.seen < self._settings.idle:
                return
            del self._requests[request]
            self._add_output(known)

    def _add_output(self, known: _Known) -> None:
        if self._settings.other_tokens:
            self._shared.add_text(known.output)


def log_fault(log: logging.Logger, then: str, host: str, error: Exception) -> None:
    """Log why a plugin stops drafting.

    Args:
        then: what happens from now on.
        host: the host's name and version, and those that are known to work.
    """
    reason, trace = sentence(error), error.__traceback__
    if isinstance(error, TrtlaError):
        reason, trace = f"{error.message}; {error.hint}", None
    log.error("trtla drafts no more, %s: %s (%s)", then, reason, host, exc_info=trace and error)


def _accepted(draft: Draft, committed: Sequence[int]) -> int:
    """Count the tokens of the draft that became text."""
    node, children = 0, draft.children()
    for count, token in enumerate(committed):
        if (node, token) not in children:
            return count
        node = children[node, token][0]
    return len(committed)
