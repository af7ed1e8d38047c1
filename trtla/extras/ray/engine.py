"""Replicas in place of a model in this process: the server uses either in the same way.

The server's process has the parts without weights: the tokenizer, the checks, the texts so far. A
replica that dies in the middle of a text only costs time: another one gets the tokens that have
arrived, and continues after them. The text depends on prompt, seed and position alone, so it stays
the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any

from trtla.errors import ReplicasLost, TrtlaError, sentence
from trtla.extras.ray.cluster import Pool
from trtla.extras.ray.replica import Replica
from trtla.formats.engine import model_digest
from trtla.llm.async_engine import in_thread
from trtla.llm.decoder import Receive, ReplicaCounts
from trtla.llm.llm import LLM
from trtla.llm.prompt import RequestMaker
from trtla.llm.text_stream import StopStrings
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Request
from trtla.runtime.stats import ExecutorStats

_MOST_LOSSES = 3
"""Consecutive replicas lost without progress of a text, after which it is given up."""
_PAUSE_S = 0.2  # before a text is sent again
_BEAT_S, _REPORT_S, _END_S = 10.0, 5.0, 20.0
_DEAD_S = 600.0
"""The model counts as failed after so long without an answer from any replica."""
_WHY = re.compile(r"trtla\.errors\.\w+: (.+)\n(?:hint: (.+))?")
"""An error of trtla in a replica's traceback."""
_LOGGING = {"enable_access_log": False, "log_level": "ERROR"}


class Maker(RequestMaker):
    """Makes requests for a model that replicas open."""

    def deploy(self, pool: Pool, open_model: Callable[[], LLM], batch_size: int | None) -> Any:
        """Start replicas of a batch size, and return Ray Serve's handle of them."""
        size = self.engine.batch_size(batch_size)
        handle = _run(_options(pool, size), open_model, model_digest(self.engine))
        opened: tuple[ExecutorLimits, str] = handle.opened.remote().result()
        self._limits = replace(opened[0], max_batch_size=size * pool.most)
        self._description = opened[1]
        return handle

    @property
    def limits(self) -> ExecutorLimits:
        return self._limits

    @property
    def description(self) -> str:
        return self._description


def _options(pool: Pool, batch_size: int) -> dict[str, Any]:
    """Return Ray Serve's options for replicas of a batch size."""
    scaling = {"min_replicas": pool.least, "max_replicas": pool.most}
    scaling |= {"initial_replicas": pool.least, "target_ongoing_requests": batch_size}
    scales = pool.least < pool.most
    return {
        "num_replicas": "auto" if scales else pool.least,
        "autoscaling_config": scaling if scales else None,
        "ray_actor_options": {"num_cpus": pool.threads, "num_gpus": pool.gpus},
        "max_ongoing_requests": 2 * batch_size,  # further texts wait for any free replica
        "max_constructor_retry_count": 1,
        "health_check_timeout_s": 60.0,  # steps of a large model on a CPU are long
        "graceful_shutdown_timeout_s": 600.0,  # for texts of a surplus replica
        "logging_config": _LOGGING,
    }


def _run(options: dict[str, Any], *model: Any) -> Any:
    """Run an application of replicas, which get its name and `model`; return its handle."""
    from ray import serve

    app = f"trtla-{os.getpid()}-{secrets.token_hex(4)}"
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # its import has set another level
    serve.start(proxy_location="Disabled", logging_config=_LOGGING)
    bound = serve.deployment(Replica, name="replica").options(**options).bind(app, *model)
    try:
        return serve.run(bound, name=app, route_prefix=None)
    except RuntimeError:
        parts = serve.status().applications[app].deployments.values()
        said = "\n".join(part.message for part in parts)
        _delete(app)
        if (why := _WHY.search(said)) is not None:
            raise TrtlaError(why[1], why[2]) from None
        raise TrtlaError(f"the replicas do not start: {said[-300:]}", "see Ray's logs") from None


def _delete(app: str) -> None:
    """End an application; Ray would wait indefinitely for a cluster that is gone."""
    from ray import serve

    ending = Thread(target=serve.delete, args=(app,), daemon=True)
    ending.start()
    ending.join(_END_S)


@dataclass(eq=False)
class _InFlight:
    """A text, and its tokens so far."""

    request: Request
    receive: Receive
    whole: bool
    ids: list[int] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)

    def rest(self) -> Request:
        """Return the request for what is missing, without what cannot be sent."""
        return replace(self.request, begun=tuple(self.ids), stop_check=None, grammar=None)

    @property
    def shown(self) -> Mapping[str, str] | None:
        """The control tokens that its stop strings may have."""
        check = self.request.stop_check
        return dict(check.shown) if isinstance(check, StopStrings) and check.shown else None


class ReplicaEngine:
    """A `Decoder` on the replicas behind a handle; `log` takes sentences about failures."""

    def __init__(self, handle: Any, log: Callable[[str], object]) -> None:
        self._handle, self.log = handle.options(stream=True), log
        self._texts: dict[int, _InFlight] = {}
        self._ending = Event()
        self.on_failure: Callable[[BaseException], object] = lambda error: None
        self._counts = ReplicaCounts()
        self.replicas: ReplicaCounts | None = self._counts
        self.coalesce_s = 0.0  # the replicas do that
        Thread(target=self._watch, name="trtla-replicas", daemon=True).start()

    def _watch(self) -> None:
        """Show the replicas that their server is alive, without which they would end."""
        heard, ended = time.monotonic(), False
        while not ended:
            if self._reports():
                heard = time.monotonic()
            elif time.monotonic() - heard > _DEAD_S:
                said = f"no replica has answered for {_DEAD_S / 60:.0f} minutes"
                self.on_failure(ReplicasLost(said, "Ray's own logs may say why"))
                return
            ended = self._ending.wait(_BEAT_S)

    def _reports(self) -> list[ExecutorStats]:
        """Return the counters of those replicas that answer."""
        answers: list[object] = []
        with suppress(Exception):  # Ray itself may have ended
            pending = self._handle.broadcast("stats")
            answers = pending.results(timeout_s=_REPORT_S, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, ExecutorStats)]

    def submit(self, requests: Iterable[Request], receive: Receive, whole: bool = False) -> None:
        """Decode requests on this event loop, each to an output with its end or to an error."""
        for request in requests:
            text = self._texts[request.request_id] = _InFlight(request, receive, whole)
            text.task = asyncio.create_task(self._finish(text))

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests without further events."""
        for request_id in request_ids:
            if (text := self._texts.pop(request_id, None)) is not None:
                text.task.cancel()

    async def _finish(self, text: _InFlight) -> None:
        """Decode a text on as many replicas as necessary, unless several die at the same token."""
        request_id, known, losses = text.request.request_id, 0, 0
        while losses < _MOST_LOSSES:
            if losses:
                self._counts.reruns += 1
                await asyncio.sleep(_PAUSE_S * losses)
            try:
                if await self._read(text):
                    break
                why = "its stream has ended"
            except asyncio.CancelledError:
                if request_id not in self._texts:
                    raise
                why = "it was cancelled"  # by Ray
            except Exception as error:  # the request's own errors arrive as outputs
                why = sentence(error)
            losses = 1 if len(text.ids) > known else losses + 1
            known = len(text.ids)
        else:
            said = f"{losses} replicas were lost at this text: {why}"
            self.log(said)
            lost = TrtlaError(said, "ask again later; the server's log says more")
            text.receive([(request_id, lost)])
        self._texts.pop(request_id, None)

    async def _read(self, text: _InFlight) -> bool:
        """Deliver what one replica makes of a text, under the request's own id; True at its end."""
        request_id = text.request.request_id
        stream = self._handle.stream.remote(text.rest(), text.whole, text.shown)
        try:
            async for outputs in stream:
                text.ids += [token for output in outputs for token in output.new_tokens]
                named = [replace(output, request_id=request_id) for output in outputs]
                text.receive([(request_id, output) for output in named])
                if outputs[-1].finish_reason:
                    return True
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return False

    def stats_later(self) -> Future[ExecutorStats]:
        """Return the counters of all replicas together, and the waiting requests."""
        return in_thread(self._stats)

    def _stats(self) -> ExecutorStats:
        each = self._reports()
        self._counts.running = len(each)
        running = sum(stats.running or 0 for stats in each)
        used = [stats.kv_cache_usage or 0 for stats in each]
        return ExecutorStats(
            running=running,
            waiting=max(0, len(self._texts) - running),
            kv_cache_usage=sum(used) / len(used) if used else None,
        )

    def close(self, timeout: float | None = None) -> bool:
        """End the replicas."""
        self._ending.set()
        _delete(self._handle.deployment_id.app_name)
        return True
