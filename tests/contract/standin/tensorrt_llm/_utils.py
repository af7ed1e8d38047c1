"""Ranks of an MPI run as Open MPI's launcher names them, and the GPU; TensorRT-LLM _utils.py."""

from __future__ import annotations

import os


def mpi_rank() -> int:
    """This process's number in the MPI run, 0 without one."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def mpi_world_size() -> int:
    """The number of processes in the MPI run, 1 without one."""
    return int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))


def get_sm_version() -> int:
    """The GPU's architecture, such as 90; torch's error when there is no GPU."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return int(properties.major * 10 + properties.minor)
