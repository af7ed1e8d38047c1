"""What decodes for the server: a thread of this process, or replicas elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from trtla.llm.background import ReplicaCounts, State
from trtla.llm.engine_thread import Event
from trtla.llm.request_maker import RequestMaker
from trtla.runtime.request import Request
from trtla.runtime.stats import ExecutorStats


class Engine(Protocol):
    """As `llm.background.BackgroundLLM` describes it."""

    state: State
    failure: BaseException | None
    replicas: ReplicaCounts | None

    @property
    def llm(self) -> RequestMaker: ...
    def start(self) -> None: ...
    def submit(self, requests: Iterable[Request], whole: bool = False) -> None: ...
    def cancel(self, request_ids: Iterable[int]) -> None: ...
    def stats(self) -> Future[ExecutorStats]: ...
    def stop(self, timeout: float | None = None) -> bool: ...


NewEngine = Callable[[Callable[[Sequence[Event]], None], Callable[[str], None]], Engine]
"""Makes an engine from two callbacks: one takes its events, the other sentences for the log."""
