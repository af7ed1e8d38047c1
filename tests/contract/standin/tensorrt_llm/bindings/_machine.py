"""What an executor finds around it: room for K/V blocks, and the other ranks.

Engines and K/V pools share one GPU (trtGptModelInflightBatching.cpp): an executor takes its
fraction of what is free when it starts, and keeps it until its C++ object is destroyed.
TENSORRT_LLM_STANDIN_KV_TOKENS says how many tokens there is room for. Serving ranks wait for the
leader's shutdown; processes meet in the folder that TENSORRT_LLM_STANDIN_MPI_DIR names.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from .._utils import mpi_rank, mpi_world_size
from ._configs import KvCacheConfig

_PLENTY = 10**15
_taken: list[Pool] = []
_WAIT_S = 120.0
_numbers = itertools.count()


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


class Ranks:
    """This process among those of one executor, the n-th that each of them opens."""

    def __init__(self) -> None:
        self.is_leader, self.world_size = mpi_rank() == 0, mpi_world_size()
        folder = os.environ.get("TENSORRT_LLM_STANDIN_MPI_DIR")
        if self.world_size > 1 and not folder:
            raise RuntimeError("TENSORRT_LLM_STANDIN_MPI_DIR must name a folder for the ranks")
        self._file = Path(folder or ".") / f"executor-{next(_numbers)}-shutdown"

    def shut_down(self) -> None:
        if self.world_size == 1:
            return
        if self.is_leader:
            self._file.write_text("")
            return
        deadline = time.monotonic() + _WAIT_S
        while not self._file.exists():
            if time.monotonic() > deadline:
                raise RuntimeError("the leader never shut down")
            time.sleep(0.01)
