"""Which process of an MPI run this is, as its launcher tells through the environment.

Known before anything is imported, so that rank 0 alone reads prompts and talks.
"""

from __future__ import annotations

import os

_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def rank() -> int:
    """This process's rank; 0 outside of MPI."""
    return _first(_RANK, 0)


def world_size() -> int:
    """Processes in the run; 1 outside of MPI, or where the launcher does not tell."""
    return _first(_SIZE, 1)


def _first(names: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdigit()), default)
