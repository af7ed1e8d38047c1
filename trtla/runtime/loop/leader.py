"""Steps on several ranks: rank 0 decides what is fed, and the others run the same."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from trtla.errors import RankLost, TrtlaError
from trtla.runtime.executor import Executor
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.lookahead_rank import LookaheadRank
from trtla.runtime.models.forward import Forwarded, Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.opening import Ranks, give_back_cores
from trtla.runtime.ranks.steps import Move, read_step, step_message
from trtla.runtime.request import Output, Request
from trtla.runtime.sequence import Feed
from trtla.runtime.stats import ExecutorStats


class RankSteps(Protocol):
    """One rank's part in every step."""

    def message(self, feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
        """Return rank 0's message about a step."""

    def run(self, message: list[Any]) -> Forwarded:
        """Run the step of a message; rank 0's caller uses the result."""


class SplitSteps:
    """The steps of tensor parallelism: all feed the same tokens, each to its part of the model."""

    def __init__(self, step: StepForward, cache: KVCache) -> None:
        self._step, self._cache = step, cache

    def message(self, feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
        return step_message(feeds, moves)

    def run(self, message: list[Any]) -> Forwarded:
        feeds, moves = read_step(message)
        self._cache.move_later(moves)
        return self._step(feeds)


def rank_steps(ranks: Ranks, model: Model[Any], step: StepForward, cache: KVCache) -> RankSteps:
    """Return the part of this rank, whose own forward is `step`."""
    if ranks.whole:
        return LookaheadRank(ranks.world, model, step, cache)
    return SplitSteps(step, cache)


class Leader:
    """Runs steps on all ranks, from rank 0.

    They run in a thread of their own, as announced: an interrupt of the caller, such as Ctrl-C
    between any two instructions, leaves no rank waiting.
    """

    def __init__(self, ranks: Ranks, steps: RankSteps, cache: KVCache) -> None:
        self._ranks, self._steps, self._cache = ranks, steps, cache
        self._thread = ThreadPoolExecutor(1, "trtla-ranks")
        self._failure: RankLost | None = None

    def __call__(self, feeds: Sequence[Feed]) -> Forwarded:
        message = self._steps.message(feeds, self._cache.take_moves())
        return self._thread.submit(self._run, message).result()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._ranks.world.check()

    def _run(self, message: list[Any]) -> Forwarded:
        if self._failure is not None:
            raise self._failure
        try:
            self._ranks.world.broadcast(message)
            return self._steps.run(message)
        except BaseException as error:
            self._failure = self._ranks.world.failure(error)
            self._ranks.leave()  # the others may be anywhere in the step
            raise self._failure from error

    def close(self) -> None:
        self._thread.submit(self._stop).result()
        self._thread.shutdown()
        give_back_cores()

    def _stop(self) -> None:
        if self._failure is None:
            with suppress(RankLost):  # a rank that has ended needs no message
                self._ranks.world.broadcast(None)
            self._ranks.leave()


class Follower(Executor):
    """Another rank's executor: its `close` runs rank 0's steps until that one closes."""

    def __init__(
        self, ranks: Ranks, model: Model[Any], cache: KVCache, limits: ExecutorLimits
    ) -> None:
        description = model.description(cache.device) + ranks.description
        super().__init__(limits, description, is_leader=False)
        self._ranks = ranks
        self._steps = rank_steps(ranks, model, model.step_forward(cache, limits), cache)

    def _release(self) -> None:
        """Run rank 0's steps until it stops; raises `RankLost` if it ends otherwise."""
        try:
            while (message := self._ranks.world.receive()) is not None:
                self._steps.run(message)
        finally:
            self._ranks.leave()
            give_back_cores()

    def enqueue(self, request: Request) -> None:
        raise self._refusal()

    def poll(self, timeout: float | None = None) -> list[Output]:
        raise self._refusal()

    def cancel(self, request_id: int) -> None:
        raise self._refusal()

    def stats(self) -> ExecutorStats:
        raise self._refusal()

    def _refusal(self) -> TrtlaError:
        return TrtlaError(
            f"this is rank {self._ranks.world.place.rank}, which takes no requests",
            "only close it where is_leader is False: it serves rank 0 until that one closes",
        )
