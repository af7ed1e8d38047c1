"""A small read of the memory, by which bench knows its speed."""

from __future__ import annotations

import pytest

from trtla.extras.bench import sweep
from trtla.extras.bench.bandwidth import read_bandwidth


@pytest.fixture(autouse=True)
def _small_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "read_bandwidth", lambda device: read_bandwidth(device, 2**22))
