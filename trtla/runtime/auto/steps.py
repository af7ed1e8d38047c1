"""Adaptive sequences in the step loop: what of their drafts is fed, and what the policy learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtla.runtime.auto.controller import NOTHING, DraftController
from trtla.runtime.auto.policy import AutoPolicy
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NO_DRAFT, Draft, fit
from trtla.runtime.sequence import Sequence as Sequence_

_ASK_EVERY = 32  # steps, while costs cannot be measured


class AdaptiveSteps:
    """What of every draft is fed: all of it for fixed sequences, what pays for adaptive ones.

    Args:
        costs: (sequences) -> what forwards of up to so many cost; None: it cannot be measured now.
    """

    def __init__(self, costs: Callable[[int], CostTable | None]) -> None:
        self._costs = costs
        self._most = 1
        """Sequences that costs were asked for."""
        self._policy: AutoPolicy | None = None
        self._controllers: dict[int, DraftController] = {}
        """By request id: what chooses how much of a sequence's drafts is fed."""
        self._waiting: list[Sequence_] = []
        """Adaptive sequences until costs are known: they feed no drafts."""
        self._steps = 0
        self._adaptive = 0
        """Adaptive sequences in the step."""
        self._drafted: list[tuple[Sequence_, int]] = []
        """Those, with their tokens before, where one of them feeds a draft; else empty."""
        self._base = 0
        self._fed = 0

    def join(self, sequence: Sequence_) -> None:
        """Make a sequence adaptive; one whose drafter has nothing to choose stays as it is."""
        if sequence.drafter.adaptive:
            self._waiting.append(sequence)
            self._begin()

    def leave(self, sequence: Sequence_) -> None:
        """Forget a sequence that has ended."""
        self._controllers.pop(sequence.request.request_id, None)
        if sequence in self._waiting:
            self._waiting = [other for other in self._waiting if other is not sequence]

    def _controller(self, sequence: Sequence_) -> DraftController | None:
        return self._controllers.get(sequence.request.request_id)

    def _begin(self) -> None:
        """Let waiting sequences draft, as soon as costs can be measured."""
        if self._policy is None:
            table = self._costs(self._most)
            if table is None:
                return
            self._policy = AutoPolicy(table)
        for sequence in self._waiting:
            own = (sequence.lookahead, sequence.drafter, sequence.output_ids)
            self._controllers[sequence.request.request_id] = self._policy.join(*own)
        self._waiting = []

    def _ask_for(self, sequences: int) -> None:
        """More are adaptive than ever before: what steps of so many cost is asked for, once."""
        self._most = sequences
        table = self._costs(sequences)
        if table is not None and self._policy is not None:
            self._policy.use(table)

    def _ask_again(self) -> None:
        """Blocks may be free by now."""
        self._steps += 1
        if self._steps % _ASK_EVERY == 0:
            self._begin()

    def observe(self, sequence: Sequence_, greedy: Sequence[int], tokens: Sequence[int]) -> None:
        """What a forward said goes to the drafter; adaptive ones without a window ask for it."""
        if sequence in self._waiting:  # its controller passes all of it on to the drafter
            return
        controller = self._controller(sequence)
        if controller is None:
            sequence.drafter.observe(greedy, tokens)
        elif greedy:
            controller.learn(greedy)
        elif self._policy is not None and len(sequence.output_ids) == len(tokens):
            self._policy.reset_backoff()

    def drafts(self, generation: Sequence[Sequence_], prompt_tokens: int, room: int) -> list[Draft]:
        """The drafts of the next step, in order.

        Args:
            prompt_tokens: are fed beside them.
            room: most tokens that all drafts may feed.
        """
        self._adaptive, self._drafted = 0, []
        limit = None if room > 0 else NOTHING
        if self._waiting:
            self._ask_again()
            plain = {id(s) for s in generation if self._controller(s) or s in self._waiting}
            own = [NO_DRAFT if id(s) in plain else s.propose(limit) for s in generation]
            return fit(own, room)
        if self._policy is None:
            return fit([s.propose(limit) for s in generation], room)
        pairs = [(sequence, self._controller(sequence)) for sequence in generation]
        drafts = [NO_DRAFT if own else s.propose(limit) for s, own in pairs]
        controllers = [controller for _, controller in pairs if controller]
        self._adaptive = len(controllers)
        if self._adaptive > self._most:
            self._ask_for(self._adaptive)
        self._fed = self._base = prompt_tokens + len(drafts)
        if len(controllers) < len(drafts):
            drafts = fit(drafts, room)
            self._fed = self._base = prompt_tokens + sum(draft.size for draft in drafts)
        if not controllers or self._policy.idle:
            self._policy.skip()
        elif self._policy.plan(controllers, self._base - len(controllers)):
            self._drafted = [(s, len(s.output_ids)) for s, own in pairs if own]
            for index, (sequence, controller) in enumerate(pairs):
                if controller and controller.limit is not NOTHING:
                    drafts[index] = sequence.propose(controller.limit)
            drafts = fit(drafts, room)
            self._fed = prompt_tokens + sum(draft.size for draft in drafts)
        return drafts

    def record(self, seconds: float) -> None:
        """Report what the planned step committed and took."""
        if not self._adaptive or self._policy is None:
            return
        committed = self._adaptive
        if self._drafted:
            committed = sum(len(s.output_ids) - before for s, before in self._drafted)
        self._policy.record(self._fed, self._base, self._adaptive, committed, seconds)
