"""SHA-256 in a thread of its own, so that hashing what is written does not wait for the disk."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class BackgroundHash:
    """A sha256 that works on one piece while the caller reads and writes the next.

    The caller must not change a piece before the next `update` returns. A context manager: leaving
    it ends the thread.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._pending: Future[None] | None = None

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes; waits for the piece before."""
        self._wait()
        self._pending = self._pool.submit(self._sha256.update, data)

    def hexdigest(self) -> str:
        """The digest of everything so far, in hexadecimal."""
        self._wait()
        return self._sha256.hexdigest()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def __enter__(self) -> BackgroundHash:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
