"""Enumerations of the C++ library that Python code uses; TensorRT-LLM bindings."""

from __future__ import annotations

import enum


class KVCacheType(enum.Enum):
    """How keys and values are stored."""

    CONTINUOUS = 0
    PAGED = 1
    DISABLED = 2

    @classmethod
    def from_string(cls, name: str) -> KVCacheType:
        """The member of that name."""
        return cls[name.upper()]
