"""The cores that ranks of one machine share: each computes with its part while models are open."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class _Sharing:
    models: int = 0
    before: int = 0
    """Threads of PyTorch when there was none."""


_sharing, _lock = _Sharing(), threading.Lock()


def share_cores(most: int) -> int:
    """Compute with so many threads at most, until `give_back_cores`; their number."""
    with _lock:
        if not _sharing.models:
            _sharing.before = torch.get_num_threads()
        _sharing.models += 1
        torch.set_num_threads(max(1, min(torch.get_num_threads(), most)))
        return torch.get_num_threads()


def give_back_cores() -> None:
    """One model is closed; with the last the threads are as many as they were."""
    with _lock:
        if not _sharing.models:
            return
        _sharing.models -= 1
        if not _sharing.models:
            torch.set_num_threads(_sharing.before)
