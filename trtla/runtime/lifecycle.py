"""What both executors share: limits, being open or closed, and ids that are in flight.

An executor belongs to the process that opened it: a fork has its memory, but neither the threads
that compute nor the device.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Container
from types import TracebackType
from typing import TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.runtime.executor import Request
from trtla.runtime.limits import ExecutorLimits

OpenedT = TypeVar("OpenedT", bound="OpenExecutor")


def check_process(opened_in: int) -> None:
    """Refuse to use in a forked process what its parent has opened.

    Raises:
        TrtlaError: this is not the process of that id.
    """
    if os.getpid() != opened_in:
        raise TrtlaError(
            f"the model was opened in another process (pid {opened_in})",
            "open it in this one, or start processes with multiprocessing's spawn instead of fork",
        )


class OpenExecutor(ABC):
    """An executor that is open until it is closed, once; a context manager."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._closed = False
        self._process = os.getpid()

    @property
    def limits(self) -> ExecutorLimits:
        """What requests must fit into."""
        return self._limits

    @abstractmethod
    def _release(self) -> None:
        """Let go of everything; called once."""

    def close(self) -> None:
        """Forget everything in flight; further calls raise, but for another `close`.

        In a forked process nothing is freed: what would free it runs in the other one.
        """
        if not self._closed:
            self._closed = True
            if self._process == os.getpid():
                self._release()

    def _check_open(self) -> None:
        check_process(self._process)
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
