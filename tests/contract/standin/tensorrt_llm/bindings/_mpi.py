"""The little MPI that the stand-in needs: serving ranks wait for the leader's shutdown.

Processes meet in the folder that TENSORRT_LLM_STANDIN_MPI_DIR names.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from .._utils import mpi_rank, mpi_world_size

_WAIT_S = 120.0
_numbers = itertools.count()


class Ranks:
    """This process among those of one executor, the n-th that each of them opens."""

    def __init__(self) -> None:
        self.rank, self.world_size = mpi_rank(), mpi_world_size()
        folder = os.environ.get("TENSORRT_LLM_STANDIN_MPI_DIR")
        if self.world_size > 1 and not folder:
            raise RuntimeError("TENSORRT_LLM_STANDIN_MPI_DIR must name a folder for the ranks")
        self._file = Path(folder or ".") / f"executor-{next(_numbers)}-shutdown"

    @property
    def is_leader(self) -> bool:
        """True in rank 0."""
        return self.rank == 0

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
