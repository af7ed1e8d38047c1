"""Enumerations of the C++ library that Python code uses; TensorRT-LLM bindings."""

from __future__ import annotations

import enum


class KVCacheType(enum.Enum):
    CONTINUOUS = 0
    PAGED = 1
    DISABLED = 2

    @classmethod
    def from_string(cls, name: str) -> KVCacheType:
        return cls[name.upper()]
