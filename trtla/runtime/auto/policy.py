"""The choice of a step's drafts: the nodes, over all sequences, that gain more than they cost.

Costs come from `StepCosts`, chances from the candidate trees. Nothing here can change a text; the
times that are recorded may change how many steps it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from trtla.runtime.auto.budget import SourceBudget
from trtla.runtime.auto.heads import HeadPolicy
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import FREE, NodePrices
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.drafters.head import HeadDrafters
from trtla.runtime.drafters.tree import FIRST_WORTH, Backoff, TreeDrafter
from trtla.runtime.tree.library import Planner, Tree

_MARGIN = 0.1  # gain required beyond a node's cost, as a share of its expected gain
_LEAST_CHANCE = 0.003  # of a node to be accepted, if feeding it costs nothing
_LESSON = 0.02  # accepted tokens that a fed node's row brings later, right or wrong
_MOST_NODES = 512  # of a step
_MOST_PLANS = 2  # of a step whose grammar forbids or forces nodes
_MEMORY = 1.0 / 64.0  # weight of a step in the averages
_TRIAL_SHARE = 0.01  # of the time of plain steps, for steps that only explore costs
_SETTLED = 64  # steps after which prices serve more than one step
_PRICED_S = 0.04  # seconds of steps that the same prices serve


TreeLimits = tuple[list[Tree], list[int], list[int]]
"""Trees, and the most nodes and depth of each."""


class _Step(NamedTuple):
    """A step before its drafts: its tokens, and the sequences whose drafts are chosen."""

    tokens: int
    sequences: int
    prompt_tokens: int
    rate: float
    """Tokens a second in steps without prompts, the worth of a second. A prompt's own time passes
    once, however much is drafted."""


class TreePolicy:
    """Chooses every sequence's nodes so that tokens per second are highest.

    A step is worth its expected tokens less `rate` x its seconds, with the average rate: that
    maximises the long-run rate (renewal reward). Nodes are taken from the likeliest on as long as
    this grows.

    Args:
        most_nodes: feed up to this many nodes of each sequence at any cost; None: those that pay.
        clock: seconds of this thread's work, for timing plans.
        wall: elapsed seconds, for timing other drafters.
    """

    def __init__(
        self,
        costs: StepCosts,
        most_nodes: int | None = None,
        clock: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._costs, self._clock, self._wall = costs, clock, wall
        self._fixed = most_nodes
        self._planner: Planner | None = None
        self._speed_up = 1.0
        self._window = SourceBudget(_FIRST_WINDOW_GAIN, _WINDOW_SHARE)
        self._others = SourceBudget(_FIRST_CHAIN_GAIN, _CHAIN_SHARE)
        self._heads: dict[HeadDrafters, HeadPolicy] = {}
        self._chain_s = 0.0
        """Seconds of one sequence's draft by other drafters."""
        self._worth = FIRST_WORTH
        """Average worth of recent plans, with which the next request begins."""
        self._plan_s = 0.0
        """Seconds of one sequence's planning."""
        self._trials_s = 0.0
        """Time saved up for steps that only explore costs."""
        self._least_value = self._latest_rate = 0.0
        """Value of nodes of which none pays below it, however many are fed; with the rate, those
        of the latest prices."""
        self._learns = True
        """Rows are read in steps without nodes, for what they teach the trees."""
        self._priced: dict[tuple[int, int, int, int], tuple[int, NodePrices]] = {}
        """Results of `_prices` that are recent enough to serve again."""
        self._is_priced = True
        """Prices were computed for this step: it is one that they learn from."""
        self._steps, self._priced_steps, self._priced_s = 0, 1, 0.0
        """All steps, and those since prices were computed, with their seconds."""
        self._has_windows = False
        """Windows were fed in the last step."""

    def plan(
        self, drafters: Sequence[TreeDrafter], base: int, room: int, prompt_tokens: int = 0
    ) -> None:
        """Choose the drafts of the next step.

        Args:
            base: tokens of the step without these drafts.
            room: most tokens of these drafts together.
            prompt_tokens: those of `base` from prompts.
        """
        self._begin()
        due: Sequence[TreeDrafter] = [one for one in drafters if self._is_due(one)]
        if not self._is_priced:
            due = self._promising(due)
        if not due:
            return
        count = len(drafters)
        step = _Step(base, count, prompt_tokens, self._rate(base - prompt_tokens, count))
        windows: Sequence[TreeDrafter] = ()
        if self._is_priced or self._has_windows:
            windows = self._fed_windows(due, step, room)
            self._has_windows = bool(windows)
        self._draft_chains(due, step)
        self._draft_heads(due, step)
        started = self._clock()  # without the time of other drafters
        trees, nodes, depths, sizes = [], [], [], 0
        for drafter in due:
            size = drafter.window_tokens if drafter in windows else 0
            trees.append(drafter.tree)
            nodes.append(self._most(drafter) - size)
            depths.append(drafter.most_depth)
            sizes += size
        if sizes:
            step = step._replace(tokens=base + sizes)
        most = max(0, min(room - sizes, sum(nodes), _MOST_NODES))
        most, prices = self._prices(step, most)
        drafts = self._planned(due, (trees, nodes, depths), most, prices)
        # A row that only teaches the trees saves less time later than short steps lose to it.
        short = step.rate * self._plan_s * _ROW_PLANS > _LESSON
        self._learns = self._fixed is not None or not short
        for drafter, draft in zip(due, drafts, strict=True):
            drafter.plan(draft, drafter in windows, learns=self._learns)
        self._took(started, len(due))
        if prices.knots:
            self._judge_plans(due, step, prices)

    def _promising(self, due: Sequence[TreeDrafter]) -> Sequence[TreeDrafter]:
        """Leave out drafters none of whose nodes can pay: to see that takes less than a plan."""
        if self._learns or self._has_windows or not due:
            return due
        started, found = self._clock(), []
        for drafter in due:
            if drafter.has_only_tree and drafter.tree.best_value() < self._least_value:
                self._judge(drafter, 0.0)
            else:
                found.append(drafter)
        self._took(started, len(due))
        return found

    def _took(self, started: float, plans: int) -> None:
        each = (self._clock() - started) / plans
        self._plan_s += (each - self._plan_s) * (_HOST_MEMORY if self._plan_s else 1.0)

    def _begin(self) -> None:
        """Begin a step. Prices are computed for each until they are settled, then now and then:
        a small model's step takes ten times as long as that."""
        self._is_priced = self._steps < _SETTLED or self._priced_s >= _PRICED_S
        if self._is_priced:
            self._priced.clear()

    def _planned(
        self, drafters: Sequence[TreeDrafter], limits: TreeLimits, most: int, prices: NodePrices
    ) -> list[Draft]:
        """Choose nodes, and choose again if a grammar has more rules along the chosen ones."""
        self._planner = self._planner or Planner()
        guided = [(at, one) for at, one in enumerate(drafters) if one.constraint is not None]
        for _, drafter in guided:
            drafter.look(NO_DRAFT)
        for _ in range(_MOST_PLANS):
            drafts = self._planner.plan(*limits, most, prices)
            again = [drafter.look(drafts[at]) for at, drafter in guided]
            if not any(again):
                break
        return drafts

    def _is_due(self, drafter: TreeDrafter) -> bool:
        drafter.backoff = drafter.backoff or Backoff(self._worth)
        due = drafter.backoff.is_due()
        if not due and drafter.others:
            drafter.draft_chains(False)
        return due

    def _judge_plans(
        self, drafters: Sequence[TreeDrafter], step: _Step, prices: NodePrices
    ) -> None:
        """Back off for sequences whose drafts bring less than their planning costs."""
        fed = sum([len(drafter.chosen.tokens) for drafter in drafters])
        node = -_LESSON
        if fed:
            node += prices.rate * (self._seconds(step, fed) - prices.knots[0][1]) / fed
        for drafter in drafters:
            chosen = drafter.chosen
            if not drafter.has_unknown_gain:
                self._judge(drafter, sum(chosen.values) - node * len(chosen.tokens))

    def _judge(self, drafter: TreeDrafter, worth: float) -> None:
        if drafter.backoff is not None:
            plans = 1.0 + self._learns * _ROW_PLANS
            drafter.backoff.planned(worth, self._latest_rate * self._plan_s * plans)
        self._worth += (worth - self._worth) * _MEMORY

    def _most(self, drafter: TreeDrafter) -> int:
        return drafter.most_nodes if self._fixed is None else min(drafter.most_nodes, self._fixed)

    def _prices(self, step: _Step, most: int) -> tuple[int, NodePrices]:
        """Return the most nodes to take, up to `most`, and their prices."""
        if self._fixed is not None:
            return most, FREE
        key = (step.tokens, step.sequences, step.prompt_tokens, most)
        known = self._priced.get(key)
        if known is None:
            known, self._is_priced = self._new_prices(step, most), True
            if known[1].knots:
                self._priced[key] = known
        return known

    def _new_prices(self, step: _Step, most: int) -> tuple[int, NodePrices]:
        prices = NodePrices(
            self._costs.knots(step.tokens, step.sequences, most), step.rate, _MARGIN, lesson=_LESSON
        )
        if step.tokens == step.sequences:  # only input tokens are fed
            if self._tries_plain(step):
                return 0, FREE
            if tried := self._tries_larger(step, prices, most):
                return tried, NodePrices(least=_TRIAL_CHANCE)
        self._latest_rate = step.rate
        (_, plain), *others = prices.knots
        each = [(seconds - plain) / nodes for nodes, seconds in others]
        self._least_value = step.rate * min(each, default=0.0) / (1.0 - _MARGIN) - _LESSON
        pairs = pairwise(prices.knots)
        slopes = [(high - low) / (b - a) for (a, low), (b, high) in pairs if a < _LOOKED_AT]
        least = max(_LEAST_CHANCE, step.rate * min(slopes, default=0.0) - _LESSON)
        return most, NodePrices(prices.knots, step.rate, _MARGIN, least, _LESSON)

    def _seconds(self, step: _Step, nodes: int = 0) -> float:
        return self._costs.seconds(step.tokens + nodes, step.sequences)

    def _tries_plain(self, step: _Step) -> bool:
        """Return True to feed nothing, if the present cost of such a step is unknown."""
        known = self._costs.knows(step.tokens, step.sequences)
        return not known and self._spends((self._speed_up - 1.0) * self._seconds(step))

    def _tries_larger(self, step: _Step, prices: NodePrices, most: int) -> int:
        """Return nodes to feed in a step of unknown cost, now and then; 0: none."""
        plain = prices.knots[0][1]
        self._trials_s += _TRIAL_SHARE * plain * self._priced_steps
        tried = min(most, _TRIAL_NODES * step.sequences)
        if tried <= 0 or self._costs.knows(step.tokens + tried, step.sequences):
            return 0
        return tried if self._spends(self._seconds(step, tried) - plain) else 0

    def _spends(self, seconds: float) -> bool:
        """Spend the time saved up for trials if it is enough; return True if it was."""
        enough = self._trials_s >= seconds
        if enough:
            self._trials_s = 0.0
        return enough

    def _fed_windows(
        self, drafters: Sequence[TreeDrafter], step: _Step, room: int
    ) -> Sequence[TreeDrafter]:
        """Return the drafters whose windows are fed: all if that pays, one for a trial."""
        if self._fixed is not None:
            return ()
        size = sum([drafter.window_tokens for drafter in drafters if drafter.window is not None])
        if not size:
            return ()
        plain, ahead = self._seconds(step), self._seconds(step, size)
        for drafter in drafters:
            if drafter.fed_window:
                self._window.brought(drafter.gained("window"))
        if self._window.pays((ahead - plain) / len(drafters), 1.0 / step.rate):
            return (
                [drafter for drafter in drafters if drafter.window_tokens] if size <= room else ()
            )
        if not self._window.tries(ahead - plain, plain * self._priced_steps):
            return ()
        first = next(drafter for drafter in drafters if drafter.window_tokens)
        return (first,) if first.window_tokens <= room else ()

    def _draft_chains(self, drafters: Sequence[TreeDrafter], step: _Step) -> None:
        chained = [drafter for drafter in drafters if drafter.others]
        if not chained:
            return
        for drafter in chained:
            if drafter.had_chain:
                self._others.brought(drafter.gained("chain"))
        plain, token_s = self._seconds(step), 1.0 / step.rate
        cost = self._chain_s
        pays = self._fixed is not None or self._others.pays(cost, token_s)
        wanted = pays or self._others.tries(cost * len(chained), plain)
        started = self._wall()
        for drafter in chained:
            drafter.draft_chains(wanted)
        if wanted:
            each = (self._wall() - started) / len(chained)
            self._chain_s += (each - self._chain_s) / 8.0

    def _draft_heads(self, drafters: Sequence[TreeDrafter], step: _Step) -> None:
        by_head: dict[HeadDrafters, list[TreeDrafter]] = {}
        for drafter in drafters:
            if drafter.head is not None:
                drafter.look(NO_DRAFT)  # a grammar rules out tokens that it would read
                by_head.setdefault(drafter.head.heads, []).append(drafter)
        for heads, due in by_head.items():
            policy = self._heads.setdefault(heads, HeadPolicy(heads, self._wall))
            always = self._fixed is not None
            policy.draft(due, self._seconds(step), 1.0 / step.rate, always)

    def _rate(self, base: int, sequences: int) -> float:
        return sequences * self._speed_up / self._costs.seconds(base, sequences)

    def record(self, fed: int, base: int, sequences: int, committed: int, seconds: float) -> None:
        """Learn from a finished step without prompts.

        Args:
            fed: tokens of all sequences in it; `base` of them would be fed without drafts.
            sequences: those under the policy, which committed `committed` tokens together.
            seconds: of the step, host work included.
        """
        reached = 1.0
        if fed > base:
            plain = self._costs.seconds(base, sequences)
            whole = self._costs.seconds(fed, sequences)
            reached = max(1.0, min(committed / sequences * plain / whole, 8.0))
        self._speed_up += (reached - self._speed_up) * _MEMORY
        if self._is_priced:
            if base == sequences:  # else prompts or other drafters took part
                self._costs.record(fed, sequences, seconds)
            self._priced_steps, self._priced_s = 0, 0.0
        self._steps += 1
        self._priced_steps += 1
        self._priced_s += seconds


_TRIAL_NODES, _TRIAL_CHANCE = 4, 0.02
_LOOKED_AT = 32  # nodes among which the cheapest one's price is searched
_ROW_PLANS = 2.0  # times a plan's own time: its rows are ranked, and the tree learns from them
_HOST_MEMORY = 1.0 / 16.0  # weight of a step in the averages of host work
_FIRST_WINDOW_GAIN = 0.15  # accepted tokens a step that only the window brings, before any trial
_WINDOW_SHARE = 0.005  # of the time of plain steps, for its trials
_FIRST_CHAIN_GAIN, _CHAIN_SHARE = 1.0, 0.02
