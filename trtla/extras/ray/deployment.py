"""The application in Ray Serve: its plan, its start, and its replicas' reports."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from trtla.console import counted
from trtla.errors import ReplicasLost, TrtlaError, UsageError
from trtla.extras.ray.cluster import Cluster, quiet
from trtla.extras.ray.replica import Opened, Replica, ReplicaReport
from trtla.llm.llm import LLM

T = TypeVar("T")
_AHEAD = 2
"""Texts of a replica for each slot in its batch; further ones wait for any free replica."""
_LOOK_EVERY_S = 0.1
_BEAT_S = 10.0
_REPORT_S = 5.0
_DEAD_S = 120.0
"""The model counts as failed after so long without an answer from any replica."""
_HEALTH_S = 5.0
_PATIENCE_S = 60.0  # for an answer to that: steps of a large model on a CPU are long
_WHY = re.compile(r"ReplicaLost: (.+)")
"""An exception of a replica, in Ray's account of it."""
_DRAIN_S = 600.0  # for texts of a surplus replica
_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The model and the resources to deploy.

    Args:
        open_model: opens the model, in a replica.
    """

    open_model: Callable[[], LLM]
    range: tuple[int, int]
    """Fewest and most replicas."""
    threads: int
    """Threads of each replica; it reserves as many cores."""
    batch_size: int
    """Requests that each replica decodes at a time."""
    gpus: int
    """GPUs of each replica: one for each of its ranks."""


class Deployment:
    """A running plan."""

    def __init__(self, plan: Plan, cluster: Cluster, log: Callable[[str], object]) -> None:
        from ray import serve

        self._cluster = cluster
        self._log, self._least = log, plan.range[0]
        self._last_beat, self._heard = 0.0, time.monotonic()
        self._alive, self._cause = 0, ""
        self.app = f"trtla-{os.getpid()}-{secrets.token_hex(4)}"
        with quiet():
            serve.start(proxy_location="Disabled", logging_config=_logging())
            deployment = serve.deployment(Replica).options(**_options(plan))
            target = serve.RunTarget(
                target=deployment.bind(plan.open_model, self.app), name=self.app, route_prefix=None
            )
            (handle,) = serve.run_many([target], wait_for_applications_running=False)
        self.handle = handle.options(stream=True)
        try:
            self._wait()
            self.opened = self._opened(handle)
            self._alive = self._least
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Wait until enough replicas have opened the model, or could not."""
        from ray import serve

        wants_room = False
        while True:
            status = serve.status().applications.get(self.app)
            state = "NOT_STARTED" if status is None else status.status.value
            if state == "RUNNING":
                return
            why = "" if status is None else " ".join(status.message.split())
            if state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise TrtlaError(f"the replicas do not start: {why[:300]}", "see Ray's own logs")
            if not wants_room and any("be scheduled" in part.message for part in self._parts()):
                self._log("the replicas wait for room on the cluster; see ray status")
                wants_room = True
            self.touch()
            time.sleep(_LOOK_EVERY_S)

    def _opened(self, handle: Any) -> Opened:
        pending = handle.opened.remote()
        while True:
            try:
                answer = pending.result(timeout_s=1.0)
            except TimeoutError:
                self.touch()
                continue
            if isinstance(answer, TrtlaError):
                raise answer
            opened: Opened = answer
            return opened

    def touch(self) -> None:
        """Every few seconds, notify running replicas that their server is alive.

        Raises:
            ReplicasLost: none has answered for long, and none is starting.
        """
        if time.monotonic() - self._last_beat < _BEAT_S:
            return
        self._last_beat = time.monotonic()
        try:
            self._count(len(self.reports()))
            self._heard = time.monotonic()
        except Exception:
            self._count(0)
            if self._is_starting():  # large models take minutes
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > _DEAD_S:
                raise ReplicasLost(
                    f"no replica has answered for {_DEAD_S:.0f} seconds, and none comes up",
                    "start the server again; Ray's own logs may say why",
                ) from None

    def _count(self, number: int) -> None:
        """Log lost replicas, and the reason why others do not start."""
        if number < self._alive:
            self._log(f"{number} of {counted(self._alive, 'replica')} answer")
        self._alive = number
        if number < self._least:
            causes = [_WHY.search(part.message) for part in self._parts()]
            why = next((cause[1] for cause in causes if cause), self._cause)
            if why != self._cause:
                self._log(f"a replica does not come up: {why}")
            self._cause = why

    def _parts(self) -> list[Any]:
        """Return Ray Serve's status of the deployment; empty if Ray itself has ended."""
        from ray import serve

        with suppress(Exception):
            status = _in_time(serve.status)
            return list(status.applications[self.app].deployments.values())
        return []

    def _is_starting(self) -> bool:
        """Return True if Ray Serve is starting replicas, on a live machine."""
        import ray

        with suppress(Exception):
            if any(node["Alive"] for node in _in_time(ray.nodes)):
                return any(part.replica_states.get("STARTING") for part in self._parts())
        return False

    def reports(self) -> list[ReplicaReport]:
        """Return the reports of those replicas that answer."""
        pending = self.handle.broadcast("report")
        answers = pending.results(timeout_s=_REPORT_S, return_exceptions=True)
        reports = [answer for answer in answers if isinstance(answer, ReplicaReport)]
        if not reports:
            raise TrtlaError("no replica answers")
        return reports

    def close(self) -> None:
        """End the replicas; those of a temporary cluster end with it."""
        if self._cluster.is_own:
            return
        from ray import serve

        with quiet(), suppress(Exception):
            _in_time(partial(serve.delete, self.app), _END_S)


def _in_time(ask: Callable[[], T], time_s: float = _REPORT_S) -> T:
    """Call Ray with a timeout; it waits indefinitely for processes that have ended."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    return answer.result(time_s)


def _options(plan: Plan) -> dict[str, Any]:
    from ray.serve.config import RequestRouterConfig

    least, most = plan.range
    number: dict[str, Any] = {"num_replicas": least}
    if least != most:
        scaling = {"min_replicas": least, "max_replicas": most, "initial_replicas": least}
        number = {"autoscaling_config": {**scaling, "target_ongoing_requests": plan.batch_size}}
    return {
        **number,
        "name": "replica",
        "ray_actor_options": {"num_cpus": plan.threads, "num_gpus": plan.gpus},
        "max_ongoing_requests": _AHEAD * plan.batch_size,
        "health_check_period_s": _HEALTH_S,
        "health_check_timeout_s": _PATIENCE_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": _DRAIN_S,
        "logging_config": _logging(),
        "request_router_config": RequestRouterConfig(
            request_router_class="trtla.extras.ray.routing.PrefixRouter"
        ),
    }


def _logging() -> dict[str, Any]:
    return {"enable_access_log": False, "log_level": "ERROR"}


def check_room(replicas: int, threads: int, gpus: int) -> None:
    """Refuse more replicas than the cluster has resources for."""
    import ray

    there, number = ray.cluster_resources(), counted(replicas, "replica")
    cores = replicas * threads
    if there.get("GPU", 0) < replicas * gpus:
        raise UsageError(
            f"{number} need {counted(replicas * gpus, 'GPU')}, and the cluster has "
            f"{there.get('GPU', 0):g}",
            "lower --replicas, or give --device cpu",
        )
    if there.get("CPU", 0) < cores:
        raise UsageError(
            f"{number} of {counted(threads, 'thread')} need {counted(cores, 'core')}, and the "
            f"cluster has {there.get('CPU', 0):g}",
            "lower --replicas or --threads, or start more of its machines first",
        )
