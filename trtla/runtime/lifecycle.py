"""What both executors share: limits, being open or closed, and ids that are in flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from types import TracebackType
from typing import TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.runtime.executor import Request
from trtla.runtime.limits import ExecutorLimits

OpenedT = TypeVar("OpenedT", bound="OpenExecutor")


class OpenExecutor(ABC):
    """An executor that is open until it is closed, once; a context manager."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._closed = False

    @property
    def limits(self) -> ExecutorLimits:
        """What requests must fit into."""
        return self._limits

    @abstractmethod
    def _release(self) -> None:
        """Let go of everything; called once."""

    def close(self) -> None:
        """Forget everything in flight; further calls raise, but for another `close`."""
        if not self._closed:
            self._closed = True
            self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise TrtlaError("the executor is closed", "open the engine again")

    def _check_new(self, request: Request, in_flight: Container[int]) -> None:
        """Refuse a request that cannot be taken, before anything changes."""
        self._check_open()
        self._limits.check(request)
        if request.request_id in in_flight:
            raise UsageError(
                f"request id {request.request_id} is already in flight",
                "give each request its own id",
            )

    def __enter__(self: OpenedT) -> OpenedT:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
