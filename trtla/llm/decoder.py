"""The interface of what decodes the requests of an open model: its own thread, or its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from trtla.errors import TrtlaError, as_trtla_error
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats

Event = tuple[int, Output | BaseException]
"""A request's id with its next output, or with the error for which all requests were given up."""
Receive = Callable[[Sequence[Event]], object]
"""Takes a step's events of some requests, in the engine's thread; must neither raise nor wait."""


@dataclass(slots=True)
class ReplicaCounts:
    """Counts of a model that runs in several processes."""

    running: int = 0
    """Replicas that answered at the time of the call."""
    reruns: int = 0
    """Times that a text continued elsewhere because its replica was lost."""


class Decoder(Protocol):
    """Decodes an open model's requests, each of which ends with an output or an error."""

    replicas: ReplicaCounts | None
    coalesce_s: float
    log: Callable[[str], object]
    on_failure: Callable[[BaseException], object]

    def submit(
        self, requests: Iterable[Request], receive: Receive, whole: bool = False
    ) -> None: ...
    def cancel(self, request_ids: Iterable[int]) -> None: ...
    def stats_later(self) -> Future[ExecutorStats]: ...
    def close(self, timeout: float | None = None) -> bool: ...


def refusal(request: Request, error: BaseException) -> Output:
    """Return the only output of a refused request."""
    why = as_trtla_error(error)
    if why is not error:
        why.__cause__ = error
    start = len(request.begun)
    return Output(request.request_id, (), "failed", RequestStats(), start=start, error=why)


def closed() -> TrtlaError:
    """Return the error for any use of a closed model."""
    return TrtlaError("the model is closed", "open it again")
