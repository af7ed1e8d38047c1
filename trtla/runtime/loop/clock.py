"""How long a step's forward takes, also where nobody waits for its end."""

from __future__ import annotations

import time

import torch


class ForwardClock:
    """Times the forward that is begun now.

    A GPU's is timed by events on its stream: the host may be elsewhere when it ends.
    """

    def __init__(self, device: torch.device) -> None:
        self.started = time.perf_counter()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._begin = self._event()
        self._end: torch.cuda.Event | None = None

    def launched(self) -> None:
        """All of the forward has been given to the device."""
        self._end = self._event()

    def seconds(self) -> float:
        """Of the forward on a GPU, which has ended; else from its beginning until now."""
        if self._begin is None or self._end is None:
            return time.perf_counter() - self.started
        return float(self._begin.elapsed_time(self._end)) / 1000.0

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event
