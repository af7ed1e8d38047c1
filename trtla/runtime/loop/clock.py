"""How long a step's forward takes, also where nobody waits for its end."""

from __future__ import annotations

import time

import torch


class ForwardClock:
    """Times a forward that begins now, and the choice of its tokens.

    A GPU may have ended the forward before the host comes back to choose: then its own events say
    how long that took.
    """

    def __init__(self, device: torch.device) -> None:
        self.started = time.perf_counter()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._begin = self._event()
        self._end = self._begin
        self._resumed: float | None = None
        """When the host came back too late to have timed the forward itself."""

    def launched(self) -> None:
        """All of the forward has been given to the device."""
        self._end = self._event()

    def resumed(self) -> None:
        """The host is there again, and begins to choose."""
        if self._end is not None and self._end.query():  # type: ignore[no-untyped-call]
            self._resumed = time.perf_counter()

    def seconds(self) -> float:
        """Of the forward and the choice, which ends now."""
        now = time.perf_counter()
        if self._resumed is None or self._begin is None or self._end is None:
            return now - self.started
        return float(self._begin.elapsed_time(self._end)) / 1000.0 + now - self._resumed

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event
