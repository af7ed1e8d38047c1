"""Makes torch.cuda report one GPU, so that code which asks for one gets past its checks.

Nothing runs on it. Memory is 80 GiB; the capability is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

MEMORY = 80 * 1024**3
NAMES = {"8.0": "NVIDIA A100-SXM4-80GB", "9.0": "NVIDIA H100 80GB HBM3", "10.0": "NVIDIA B200"}


def functions(capability: str) -> dict[str, Callable[..., Any]]:
    """What replaces the functions of torch.cuda, for a capability such as `9.0`."""
    major, minor = (int(part) for part in capability.split("."))
    name = NAMES.get(capability, f"NVIDIA GPU {capability}")
    properties = SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        total_memory=MEMORY,
        multi_processor_count=132,
    )
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: name,
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
    }


def patch(cuda: Any, capability: str) -> None:
    """Replace them for good; tests use monkeypatch with `functions` instead."""
    for name, function in functions(capability).items():
        setattr(cuda, name, function)
