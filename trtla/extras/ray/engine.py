"""Replicas in place of a model in this process: the server uses either in the same way.

The server's process has the parts without weights: the tokenizer, the checks, the texts so far. A
replica that dies in the middle of a text only costs time: another one gets the tokens that have
arrived, and continues after them. The text depends on prompt, seed and position alone, so it stays
the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from trtla.errors import TrtlaError, sentence
from trtla.extras.ray.cluster import Cluster
from trtla.extras.ray.deployment import Deployment, Plan, check_room
from trtla.extras.ray.replica import NotOpen, Opened, ReplicaReport, packed
from trtla.llm.decoder import Receive, ReplicaCounts, closed
from trtla.llm.prompt import RequestMaker
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats

_MOST_LOSSES = 3
"""Consecutive replicas lost without progress of a text, after which it is given up."""
_PAUSE_S = 0.2  # before a text is sent again
_LONG_PAUSE_S = 1.0  # after a replica without a model, which Ray Serve replaces
_NO_MODEL = "it had no model"
_LATE_S = 2.0  # beyond a request's time, which the replica ends itself


class Maker(RequestMaker):
    """Makes requests for a model that others have opened."""

    opened: Opened
    batch_size: int
    """The batch size of all possible replicas together."""

    @property
    def limits(self) -> ExecutorLimits:
        return replace(self.opened.limits, max_batch_size=self.batch_size)

    @property
    def description(self) -> str:
        return self.opened.description


class _InFlight:
    def __init__(self, request: Request, receive: Receive, whole: bool) -> None:
        self.request, self.receive, self.whole = request, receive, whole
        self.ids: list[int] = []
        self.losses = 0
        self.wanted = True
        self.began = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def packed(self) -> Request:
        allotted = self.request.sampling.allotted_time_ms
        spent = round(1000 * (time.monotonic() - self.began))
        left = None if allotted is None else max(1, allotted - spent)
        return packed(self.request, self.ids, left)


def open_replicas(
    maker: Maker,
    new_plan: Callable[[Maker, Cluster], Plan],
    connect: Callable[[], Cluster],
    log: Callable[[str], object],
) -> Maker:
    """Deploy a plan, so that replicas decode the maker's requests.

    Args:
        connect: connects to Ray.
        log: takes sentences about failures.
    """

    def deploy(cluster: Cluster) -> Deployment:
        plan = new_plan(maker, cluster)
        check_room(plan.range[0], plan.threads, plan.gpus)
        maker.batch_size = plan.range[1] * plan.batch_size
        return Deployment(plan, cluster, log)

    engine = ReplicaEngine(connect, deploy, log)
    maker.opened, maker.executor = engine.open(), engine
    return maker


class ReplicaEngine:
    """An `EngineThread` on replicas; requests are submitted on the server's event loop.

    Args:
        connect: connects to Ray.
        deploy: starts the replicas.
        log: takes sentences about failures.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        deploy: Callable[[Cluster], Deployment],
        log: Callable[[str], object],
    ) -> None:
        self._connect, self._deploy = connect, deploy
        self.log: Callable[[str], object] = log
        self._deployment: Deployment
        self._opened: Future[Opened] = Future()
        self._texts: dict[int, _InFlight] = {}
        self._ending = threading.Event()
        self._asking = ThreadPoolExecutor(1, "trtla-reports")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_failure: Callable[[BaseException], object] = lambda error: None
        self.replicas: ReplicaCounts | None = ReplicaCounts()
        self.coalesce_s = 0.0  # the replicas do that
        self._reruns = 0
        self._thread = threading.Thread(target=self._run, name="trtla-replicas", daemon=True)

    def open(self) -> Opened:
        """Start the replicas, and stay in contact with them from now on."""
        self._thread.start()
        return self._opened.result()

    def _run(self) -> None:
        """Own the cluster: Ray's processes end with the thread that started them."""
        error: BaseException = closed()
        cluster = None
        try:
            cluster = self._connect()
            self._deployment = self._deploy(cluster)
            if not self._ending.is_set():
                self._opened.set_result(self._deployment.opened)
            while not self._ending.wait(1.0):  # replicas end if a server is silent
                self._deployment.touch()
            self._deployment.close()
        except BaseException as lost:  # of any kind, so that no request waits indefinitely
            error = lost
        self._end(error)
        if cluster is not None:
            cluster.close()

    def _end(self, error: BaseException) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
        elif not self._ending.is_set():
            self.on_failure(error)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: BaseException) -> None:
        for request_id, text in tuple(self._texts.items()):
            self.cancel([request_id])
            text.receive([(request_id, error)])

    def submit(self, requests: Iterable[Request], receive: Receive, whole: bool = False) -> None:
        """Decode requests; each ends with an output or an error.

        Args:
            whole: texts are only read at their ends, so they travel in few pieces.
        """
        self._loop = asyncio.get_running_loop()
        for request in requests:
            text = self._texts[request.request_id] = _InFlight(request, receive, whole)
            text.task = self._loop.create_task(self._finish(text))
            allotted = request.sampling.allotted_time_ms
            if allotted is not None:
                late_s = allotted / 1000 + _LATE_S
                text.timer = self._loop.call_later(late_s, self._end_late, text)

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests without further events."""
        for request_id in request_ids:
            text = self._texts.pop(request_id, None)
            if text is not None and text.task is not None:
                text.wanted = False
                text.task.cancel()

    def _end_late(self, text: _InFlight) -> None:
        """End a text that no replica has ended in its time, possibly since there is none."""
        request_id = text.request.request_id
        if self._texts.get(request_id) is text:
            self.cancel([request_id])
            late = Output(request_id, (), "timed_out", RequestStats(), start=len(text.ids))
            text.receive([(request_id, late)])

    async def _finish(self, text: _InFlight) -> None:
        """Decode a text to its end, on as many replicas as necessary."""
        request_id = text.request.request_id
        with suppress(asyncio.CancelledError):
            while text.wanted and (why := await self._decode(text)) is not None:
                if why == _NO_MODEL:
                    await asyncio.sleep(_LONG_PAUSE_S)
                    continue
                if text.losses >= _MOST_LOSSES:
                    error = TrtlaError(
                        f"{text.losses} replicas were lost at this text: {why}",
                        "ask again later; the server's log says more",
                    )
                    self.log(f"a text was given up: {why}")
                    text.receive([(request_id, error)])
                    break
                self._reruns += 1
                await asyncio.sleep(_PAUSE_S * text.losses)
        if text.timer is not None:
            text.timer.cancel()
        if self._texts.get(request_id) is text:
            del self._texts[request_id]

    async def _decode(self, text: _InFlight) -> str | None:
        """Decode on one replica; return why it was lost, or None if the text has ended."""
        known = len(text.ids)
        stream = self._deployment.handle.stream.remote(text.packed(), text.whole)
        try:
            async for outputs in stream:
                if self._deliver(text, outputs):
                    return None
            why = "its stream has ended"
        except asyncio.CancelledError:
            stream.cancel()
            if not text.wanted:
                raise
            why = "it was cancelled"
        except NotOpen:
            return _NO_MODEL
        except Exception as error:  # the request's own errors arrive as outputs
            why = sentence(error)
        text.losses = 1 if len(text.ids) > known else text.losses + 1
        return why

    def _deliver(self, text: _InFlight, outputs: Sequence[Output]) -> bool:
        """Deliver a replica's outputs under the request's own id; return True after the last."""
        request_id = text.request.request_id
        for output in outputs:
            text.ids += output.new_tokens
        if text.wanted:
            renamed = [(request_id, replace(out, request_id=request_id)) for out in outputs]
            text.receive(renamed)
        return any(output.finish_reason for output in outputs)

    def stats_later(self) -> Future[ExecutorStats]:
        """Return the counters of all replicas together, and the waiting requests."""
        return self._asking.submit(self._stats)

    def reports(self) -> list[ReplicaReport]:
        return self._deployment.reports()

    def _stats(self) -> ExecutorStats:
        each: list[ExecutorStats] = []
        try:
            each += [report.stats for report in self.reports()]
        finally:
            self.replicas = ReplicaCounts(len(each), self._reruns)
        running = sum(stats.running or 0 for stats in each)
        used = [stats.kv_cache_usage for stats in each if stats.kv_cache_usage is not None]
        return ExecutorStats(
            running=running,
            waiting=max(0, len(self._texts) - running),
            kv_cache_usage=sum(used) / len(used) if used else None,
        )

    def close(self, timeout: float | None = None) -> bool:
        """End the replicas and remaining requests; False if that takes longer."""
        self._ending.set()
        self._thread.join(timeout)
        self._asking.shutdown(wait=False, cancel_futures=True)
        return not self._thread.is_alive()
