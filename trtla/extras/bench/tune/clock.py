"""The clock of a tuning's deadlines, which tests replace."""

from __future__ import annotations

import time


def now() -> float:
    """Return the seconds of the clock of all deadlines."""
    return time.monotonic()
