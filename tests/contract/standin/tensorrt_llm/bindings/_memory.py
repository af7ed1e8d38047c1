"""GPU memory for K/V pools, counted in tokens; TensorRT-LLM trtGptModelInflightBatching.cpp.

Engines and pools share one GPU: an executor takes its fraction of what is free when it starts, and
keeps it until its C++ object is destroyed. TENSORRT_LLM_STANDIN_KV_TOKENS says how much there is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ._configs import KvCacheConfig

_PLENTY = 10**15
_taken: list[Pool] = []


@dataclass(eq=False)
class Pool:
    tokens: int

    def free(self) -> None:
        _taken.remove(self)


def take(config: KvCacheConfig) -> Pool:
    total = int(os.environ.get("TENSORRT_LLM_STANDIN_KV_TOKENS", _PLENTY))
    share = config.free_gpu_memory_fraction or 0.9
    tokens = int(share * (total - sum(pool.tokens for pool in _taken)))
    pool = Pool(min(tokens, config.max_tokens or tokens))
    _taken.append(pool)
    return pool
