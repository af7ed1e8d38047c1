"""The application in Ray Serve: what it is made of, its start, and what its replicas say."""

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
from trtla.llm.llm import LLM
from trtla.replicas.cluster import Cluster, quiet
from trtla.replicas.replica import Opened, Replica, ReplicaReport

T = TypeVar("T")
_AHEAD = 2
"""Texts that a replica takes, for each place in its batch; others wait for whoever is free."""
_LOOK_EVERY_S = 0.1
_BEAT_S = 10.0
_REPORT_S = 5.0
_DEAD_S = 120.0
"""Without a word of any replica for so long, the model counts as failed."""
_HEALTH_S = 5.0
_PATIENCE_S = 60.0  # for an answer to that: steps of a large model on a CPU are long
_WHY = re.compile(r"ReplicaLost: (.+)")
"""What a replica has raised, in Ray's account of it."""
_DRAIN_S = 600.0  # for texts of a replica that is one too many
_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is deployed.

    Args:
        open_model: opens the model, in a replica.
    """

    open_model: Callable[[], LLM]
    range: tuple[int, int]
    """Fewest and most replicas."""
    threads: int
    """Threads of each replica; as many cores are set aside for it."""
    batch_size: int
    """Requests that each replica decodes at a time."""
    gpus: int
    """GPUs of each replica: one for each of its ranks."""


class Deployment:
    """A plan that is carried out."""

    def __init__(self, plan: Plan, cluster: Cluster, log: Callable[[str], object]) -> None:
        from ray import serve

        self._cluster = cluster
        self._log, self._least = log, plan.range[0]
        self._last_beat, self._heard = 0.0, time.monotonic()
        self._alive, self._cause = 0, ""
        self.app = f"trtla-{os.getpid()}-{secrets.token_hex(4)}"
        with quiet():
            serve.start(proxy_location="Disabled", logging_config=_logging())
            made = serve.deployment(Replica).options(**_options(plan))
            target = serve.RunTarget(
                target=made.bind(plan.open_model, self.app), name=self.app, route_prefix=None
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
        """Until as many replicas as asked for have opened the model, or could not."""
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
            found: Opened = answer
            return found

    def touch(self) -> None:
        """Every few seconds, tell those replicas that run that their server is there.

        Raises:
            ReplicasLost: for long none has answered, and none has come up.
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
        """Log that replicas were lost, and why others do not come up."""
        if number < self._alive:
            self._log(f"{number} of {counted(self._alive, 'replica')} answer")
        self._alive = number
        if number < self._least:
            causes = [_WHY.search(part.message) for part in self._parts()]
            why = next((found[1] for found in causes if found), self._cause)
            if why != self._cause:
                self._log(f"a replica does not come up: {why}")
            self._cause = why

    def _parts(self) -> list[Any]:
        """What Ray Serve says of the deployment; nothing where Ray itself is gone."""
        from ray import serve

        with suppress(Exception):
            status = _in_time(serve.status)
            return list(status.applications[self.app].deployments.values())
        return []

    def _is_starting(self) -> bool:
        """Whether Ray Serve has replicas that come up, on a machine that is there."""
        import ray

        with suppress(Exception):
            if any(node["Alive"] for node in _in_time(ray.nodes)):
                return any(part.replica_states.get("STARTING") for part in self._parts())
        return False

    def reports(self) -> list[ReplicaReport]:
        """What the replicas say of themselves, those that answer."""
        pending = self.handle.broadcast("report")
        answers = pending.results(timeout_s=_REPORT_S, return_exceptions=True)
        found = [one for one in answers if isinstance(one, ReplicaReport)]
        if not found:
            raise TrtlaError("no replica answers")
        return found

    def close(self) -> None:
        """End the replicas; those of a cluster of our own end with it."""
        if self._cluster.is_own:
            return
        from ray import serve

        with quiet(), suppress(Exception):
            _in_time(partial(serve.delete, self.app), _END_S)


def _in_time(ask: Callable[[], T], time_s: float = _REPORT_S) -> T:
    """What Ray says; it waits indefinitely for an answer from processes that are gone."""
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
            request_router_class="trtla.replicas.routing.PrefixRouter"
        ),
    }


def _logging() -> dict[str, Any]:
    return {"enable_access_log": False, "log_level": "ERROR"}


def check_room(replicas: int, threads: int, gpus: int) -> None:
    """Refuse more replicas than a cluster has room for."""
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
