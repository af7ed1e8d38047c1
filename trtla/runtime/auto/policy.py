"""How much is drafted in a step: the nodes, over all sequences, that earn more than they cost.

Costs come from a `CostTable`, chances from the candidate trees. Nothing here can change a text; the
times that are recorded may change how many steps it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import Array, c_double
from itertools import accumulate

from trtla.runtime.auto.step_costs import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.tree.open import Planner

_MARGIN = 0.1  # what nodes must earn beyond their cost, as a share of what they should bring
_LEAST_CHANCE = 0.003  # of a node to be accepted, where feeding it costs nothing
_LESSON = 0.02  # accepted tokens that the row of a fed node brings later, right or wrong
_MOST_NODES = 512  # of a step
_MEMORY = 1.0 / 64.0  # what a step counts in the averages
_TRIAL_SHARE = 0.01  # of the time of plain steps, for drafts that only show what they cost
_HOST_SHARE = 0.06  # of a plain step, for planning that finds nothing
_LONGEST_REST = 16  # steps


class TreePolicy:
    """Chooses every sequence's nodes so that tokens per second are highest.

    A step is worth its expected tokens less `rate` x its seconds, the rate being what is reached on
    average: that is the way to the highest long-run rate (renewal reward). Nodes are taken from the
    likeliest on as long as this grows.

    Args:
        most_nodes: feed up to so many nodes of each sequence, whatever they cost; None: what pays.
    """

    def __init__(
        self,
        table: CostTable,
        most_nodes: int | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._costs, self._clock = StepCosts(table), clock
        self._fixed = most_nodes
        self._planner: Planner | None = None
        self._speed_up = 1.0
        self._window = SourceBudget(_FIRST_WINDOW_GAIN, _WINDOW_SHARE)
        self._others = SourceBudget(_FIRST_CHAIN_GAIN, _CHAIN_SHARE)
        self._chain_s = 0.0
        """Of one sequence's draft by other drafters."""
        self._plan_s = 0.0
        self._trials_s = 0.0
        """Time saved up for drafts that only show what they cost."""
        self._now = self._rest = self._resume = 0

    def use(self, table: CostTable) -> None:
        """Go on with a table that knows more."""
        self._costs.use(table)

    def wake(self) -> None:
        """A sequence begins to generate: plan the next step in any case."""
        self._rest = self._resume = 0

    def plan(self, drafters: Sequence[TreeDrafter], base: int, room: int) -> bool:
        """Choose the drafts of the next step; False: none feeds more than its input.

        Args:
            base: tokens of the step without these drafts.
            room: most tokens that they may feed together.
        """
        self._now += 1
        if self._now < self._resume:
            return False
        started, count = self._clock(), len(drafters)
        windows = self._feed_windows(drafters, base)
        sizes = sum(one.window_tokens for one in drafters[:windows])
        if sizes > room:
            windows = sizes = 0
        self._draft_chains(drafters, base)
        trees = [one.handle for one in drafters]
        nodes = [self._most(one, place < windows) for place, one in enumerate(drafters)]
        depths = [one.most_depth for one in drafters]
        most = max(0, min(room - sizes, sum(nodes), _MOST_NODES))
        self._planner = self._planner or drafters[0].planner()
        prices = self._prices(base + sizes, count, most)
        drafts = self._planner.plan(trees, nodes, depths, *prices)
        fed = False
        for place, (one, draft) in enumerate(zip(drafters, drafts, strict=True)):
            one.plan(draft, place < windows)
            fed |= bool(one.planned.tokens)
        self._rest_after(fed, self._clock() - started, base, count)
        return fed

    def _most(self, drafter: TreeDrafter, with_window: bool) -> int:
        most = drafter.most_nodes if self._fixed is None else min(drafter.most_nodes, self._fixed)
        return most - with_window * drafter.window_tokens

    def _prices(
        self, base: int, count: int, most: int
    ) -> tuple[int, Array[c_double] | None, float, float, float, float]:
        """Most nodes, seconds by nodes, rate, margin, the least chance that can pay, lesson."""
        if self._fixed is not None:
            return most, None, 0.0, 0.0, 0.0, 0.0
        rate = self._rate(base, count)
        seconds = self._seconds(base, count, most)
        if tried := self._tries_larger(seconds, base, count, most):
            return tried, None, 0.0, 0.0, _TRIAL_CHANCE, 0.0
        least = min((seconds[k] - seconds[k - 1] for k in range(1, min(most, 32) + 1)), default=0.0)
        return most, seconds, rate, _MARGIN, max(_LEAST_CHANCE, rate * least - _LESSON), _LESSON

    def _seconds(self, base: int, count: int, most: int) -> Array[c_double]:
        """The time of a step with 0, 1, ... nodes, linear between sizes that the table knows."""
        found, knot = [self._costs.seconds(base, count)], 0
        while knot < most:
            start, last, knot = knot, found[-1], min(most, 2 * knot + count)
            slope = (self._costs.seconds(base + knot, count) - last) / (knot - start)
            found += [last + slope * k for k in range(1, knot - start + 1)]
        rising = list(accumulate(reversed(found), min))  # less never costs more
        return (c_double * len(found))(*reversed(rising))

    def _tries_larger(self, seconds: Array[c_double], base: int, count: int, most: int) -> int:
        """Nodes to feed where nothing is known of steps of that size, now and then; 0: none."""
        self._trials_s += _TRIAL_SHARE * seconds[0]
        tried = min(most, _TRIAL_NODES * count)
        if tried <= 0 or self._costs.knows(base + tried, count):
            return 0
        if self._trials_s < seconds[tried] - seconds[0]:
            return 0
        self._trials_s = 0.0
        return tried

    def _rest_after(self, fed: bool, took: float, base: int, count: int) -> None:
        """Where planning finds nothing and costs a notable part of a step, rest for a while."""
        self._plan_s += (took - self._plan_s) / 16.0
        if fed or self._plan_s < _HOST_SHARE * self._costs.seconds(base, count):
            self._rest = 0
            return
        self._rest = min(max(1, 2 * self._rest), _LONGEST_REST)
        self._resume = self._now + self._rest

    def _feed_windows(self, drafters: Sequence[TreeDrafter], base: int) -> int:
        """How many sequences feed their windows: all where that pays, one where it is tried."""
        sizes = [one.window_tokens for one in drafters]
        if not any(sizes) or self._fixed is not None:
            return 0
        count = len(drafters)
        plain = self._costs.seconds(base, count)
        ahead = self._costs.seconds(base + sum(sizes), count)
        for one in drafters:
            if one.fed_window:
                self._window.saw(one.gained("window"))
        if self._window.pays((ahead - plain) / count, 1.0 / self._rate(base, count)):
            return count
        return int(self._window.tries(ahead - plain, plain))

    def _draft_chains(self, drafters: Sequence[TreeDrafter], base: int) -> None:
        """Let other drafters draft where that pays."""
        having = [one for one in drafters if one.others]
        if not having:
            return
        for one in having:
            if one.had_chain:
                self._others.saw(one.gained("chain"))
        count = len(drafters)
        plain, token_s = self._costs.seconds(base, count), 1.0 / self._rate(base, count)
        cost = self._chain_s
        pays = self._fixed is not None or self._others.pays(cost, token_s)
        chosen = having if pays or self._others.tries(cost * len(having), plain) else []
        started = time.perf_counter()
        for one in having:
            one.draft_chain(one in chosen)
        if chosen:
            each = (time.perf_counter() - started) / len(chosen)
            self._chain_s += (each - self._chain_s) / 8.0

    def _rate(self, base: int, sequences: int) -> float:
        """Tokens a second that this batch reaches."""
        return sequences * self._speed_up / self._costs.seconds(base, sequences)

    def record(self, fed: int, base: int, sequences: int, committed: int, seconds: float) -> None:
        """Learn from a finished step.

        Args:
            fed: tokens of all sequences in it; `base` of them would have been fed without drafts.
            sequences: those under the policy, which committed `committed` tokens together.
            seconds: what the step took, host work included.
        """
        reached = 1.0
        if fed > base:
            plain, whole = (self._costs.seconds(tokens, sequences) for tokens in (base, fed))
            reached = max(1.0, min(committed / sequences * plain / whole, 8.0))
        self._speed_up += (reached - self._speed_up) * _MEMORY
        if base == sequences:  # else prompts or others' drafts took part
            self._costs.record(fed, sequences, seconds)


_TRIAL_NODES, _TRIAL_CHANCE = 4, 0.02
_FIRST_WINDOW_GAIN = 0.15  # accepted tokens a step that only the window brings, before any trial
_WINDOW_SHARE = 0.005  # of the time of plain steps, for its trials
_FIRST_CHAIN_GAIN, _CHAIN_SHARE = 1.0, 0.02
_TRIAL_STEPS = 24  # a window fills, makes n-grams, and the text has time to use them


class SourceBudget:
    """What a source that has to be paid for has brought lately, and the time saved up for trials.

    Args:
        gain: accepted tokens a step that no other source had as likely, before any was seen.
        share: of the time of plain steps, for trials.
    """

    def __init__(self, gain: float, share: float) -> None:
        self._gain, self._share = gain, share
        self._saved_s = 0.0
        self._trial = 0

    def pays(self, cost_s: float, token_s: float) -> bool:
        """Whether every sequence should use it.

        Args:
            cost_s: what it adds to a step.
            token_s: what a committed token takes on average.
        """
        return self._gain * token_s > cost_s

    def tries(self, cost_s: float, plain_s: float) -> bool:
        """Where it does not pay: whether it is used all the same, to see.

        Args:
            plain_s: what the step takes without drafts.
        """
        if not self._trial:
            self._saved_s += self._share * plain_s
            if self._saved_s < _TRIAL_STEPS * cost_s:
                return False
            self._saved_s, self._trial = 0.0, _TRIAL_STEPS
        self._trial -= 1
        return True

    def saw(self, tokens: float) -> None:
        """A sequence that used it accepted this many tokens for which it alone spoke."""
        self._gain += (tokens - self._gain) * _MEMORY
