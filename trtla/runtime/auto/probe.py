"""Measuring a cost table: timed forwards of made-up sequences in free blocks, on the real model.

Other work on the machine only adds to a time, so the least time of each forward counts. The spread
of its runs shows whether the machine was busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.costs import CostPlan, CostTable, Point, rising
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.forward import StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import Request
from trtla.runtime.sampling.draw import argmax
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.lookahead import AUTOREGRESSIVE


def measure_costs(
    run: StepForward, cache: KVCache, limits: ExecutorLimits, plan: CostPlan
) -> CostTable | None:
    """Time forwards as the executor runs its steps, for up to the limits' number of sequences.

    Some 2 s for a small model. It takes free blocks of the cache and releases them; requests in
    flight are not affected. None: no blocks are free now.
    """
    fitted = fitted_plan(plan, cache, limits)
    owned: list[tuple[int, ...]] = []
    while len(owned) < fitted.batches[-1]:
        blocks = cache.pool.allocate(fitted.context + fitted.sizes[-1])
        if blocks is None:
            break
        owned.append(blocks)
    try:
        if not owned:
            return None
        fitted = replace(fitted, batches=_up_to(len(owned), fitted.batches))
        forward = _forward(run, owned, fitted.context, limits.max_encoder_len is not None)
        clock = thread_clock if cache.device.type == "cpu" else device_clock
        return measure(forward, fitted, clock)
    finally:
        for blocks in owned:
            cache.pool.release(blocks)


def fitted_plan(plan: CostPlan, cache: KVCache, limits: ExecutorLimits) -> CostPlan:
    """Fit a plan to an executor, and add all sizes that its adaptive steps can have."""
    step, most = 1 + limits.lookahead.max_draft_len, limits.max_num_tokens
    context = max(1, min(plan.context, limits.max_text_len // 2))
    room = max(step, limits.max_text_len + limits.lookahead.max_draft_len - context)
    longest = step if cache.device.type == "cuda" else room  # longer steps have no graph there
    sizes = tuple(sorted({*(size for size in plan.sizes if size <= longest), step}))
    each = -(-(context + sizes[-1]) // TOKENS_PER_BLOCK)
    sequences = max(1, min(limits.max_batch_size, cache.pool.num_blocks // each))
    return replace(
        plan,
        batches=_up_to(sequences, plan.batches),
        sizes=sizes,
        most_tokens=min(plan.most_tokens, most),
        context=context,
        needed=step,
        max_tokens=most,
    )


def _up_to(most: int, batches: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in batches if count <= most) or (most,)


def _forward(
    run: StepForward, owned: list[tuple[int, ...]], context: int, encodes: bool
) -> Forward:
    text = (0,) * context
    request = Request(0, text, encoder_ids=text if encodes else None)

    def forward(sequences: int, each: int) -> None:
        draft = Draft((0,) * (each - 1), tuple(range(each - 1)))
        feeds = []
        for blocks in owned[:sequences]:
            sequence = Sequence(request, AUTOREGRESSIVE, NoDrafter(), [0], context, blocks)
            feeds.append(Feed.step(sequence, draft))
        argmax(on_host(run(feeds).logits))

    return forward


Forward = Callable[[int, int], None]
"""(sequences, fed tokens each): run one such forward to its end."""
Clock = Callable[[], tuple[float, float]]
"""Seconds elapsed, and seconds for which this thread was on a processor."""

_STEEPEST = 1.3  # most that a fed token may cost, relative to the next smaller forward
_FALLING = 1.05  # most that a forward may cost, relative to the next larger one
_ROUNDS = 4  # of repeating doubtful times
_CALM_SPREAD = 1.3  # median against least
_CALM_SHARE = 0.7  # of the time that the thread was on a processor


def thread_clock() -> tuple[float, float]:
    """Read the clock of forwards that this thread computes."""
    return time.perf_counter(), time.thread_time()


def device_clock() -> tuple[float, float]:
    """Read the clock of forwards that another device computes while this thread may wait."""
    now = time.perf_counter()
    return now, now


def measure(forward: Forward, plan: CostPlan, clock: Clock = thread_clock) -> CostTable:
    """Time forwards according to the plan."""
    rows = [_Row(forward, sequences, plan, clock) for sequences in plan.batches]
    for row in rows:
        row.measure()
    return CostTable(tuple((row.sequences, row.points()) for row in rows))


class _Row:
    def __init__(self, forward: Forward, sequences: int, plan: CostPlan, clock: Clock) -> None:
        self.sequences = sequences
        self._forward, self._plan, self._clock = forward, plan, clock
        self._runs: dict[int, list[float]] = {}
        """Seconds by fed tokens of each sequence, sizes rising."""
        self._repeated_s = self._wall_s = self._busy_s = 0.0

    def measure(self) -> None:
        """Time needed sizes first; then larger ones, further sweeps and doubtful times.

        A disturbed row uses all of its budget.
        """
        needed = 1 if self._plan.bounded else self._plan.top(self.sequences)
        for each in self._plan.sizes_of(self.sequences):
            if each > needed and self._late():
                break
            self._first_runs(each)
        sweeps = 1
        while not self._late() and (sweeps < self._plan.sweeps or not self.calm):
            self._sweep()
            sweeps += 1
        self._settle_doubts()

    def _sweep(self) -> None:
        for each in self._runs:
            for _ in range(self._plan.repeats):
                if self._late():
                    return
                self._run(each)

    def _late(self, budgets: float = 1.0) -> bool:
        return self._repeated_s > budgets * self._plan.row_budget_s

    def _run(self, each: int) -> float:
        wall, busy = self._clock()
        self._forward(self.sequences, each)
        wall_after, busy_after = self._clock()
        seconds = wall_after - wall
        runs = self._runs.setdefault(each, [])
        runs.append(seconds)
        if len(runs) > 1 or self._plausible(each):  # else it warmed up, or compiled something
            self._repeated_s += seconds
            self._wall_s += seconds
            self._busy_s += busy_after - busy
        return seconds

    def _first_runs(self, each: int) -> None:
        """Run a slow forward a few times, but once more after implausible times."""
        spent, budget = 0.0, self._plan.row_budget_s
        for run in range(1, 4 + self._plan.repeats):
            spent += self._run(each)
            slow = spent > budget / (4 if run == 1 else 8)
            if (slow or run > self._plan.repeats) and self._plausible(each):
                return

    def _best(self, each: int) -> float:
        return min(self._runs[each])

    def _plausible(self, each: int) -> bool:
        """Return True if a forward costs no more than in proportion to a smaller one, or ran
        twice."""
        smaller = max((size for size in self._runs if size < each), default=None)
        if smaller is None:
            return len(self._runs[each]) > 1
        return self._best(each) <= _STEEPEST * self._best(smaller) * each / smaller

    def _settle_doubts(self) -> None:
        """Repeat times that do not fit their neighbours, briefly on a slow machine."""
        for _ in range(_ROUNDS):
            doubtful = [each for each in self._runs if self._doubtful(each)]
            if not doubtful or self._late(1.0 if self._plan.bounded else 3.0):
                return
            for each in doubtful:
                self._run(each)

    def _doubtful(self, each: int) -> bool:
        larger = min((size for size in self._runs if size > each), default=None)
        falls = larger is not None and self._best(each) > _FALLING * self._best(larger)
        return falls or not self._plausible(each)

    @property
    def calm(self) -> bool:
        """True if the times show no disturbance by other work."""
        spreads = [median(runs[1:]) / min(runs) for runs in self._runs.values() if len(runs) > 2]
        steady = not spreads or median(spreads) <= _CALM_SPREAD
        return steady and self._busy_s >= _CALM_SHARE * self._wall_s

    def points(self) -> tuple[Point, ...]:
        return rising({self.sequences * each: self._best(each) for each in self._runs})
