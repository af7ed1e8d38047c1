"""Data-parallel training processes on one machine.

One single-threaded process a core beats one process with a thread a core where other programs
compete for the cores: the processes wait for each other once a step, threads at every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor


class Workers:
    """One process's view of all the training processes."""

    def __init__(self, rank: int, count: int, folder: Path) -> None:
        self.rank, self.count = rank, count
        torch.set_num_threads(1)
        if count > 1:
            rendezvous = f"file://{_rendezvous(folder)}"
            dist.init_process_group("gloo", rendezvous, rank=rank, world_size=count)

    @property
    def share(self) -> slice:
        """This process's share of the rows of a tensor that all processes have."""
        return slice(self.rank, None, self.count)

    def add_up(self, tensor: Tensor) -> None:
        """Replace the tensor, in every process, by the sum over the processes."""
        if self.count > 1:
            dist.all_reduce(tensor)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace the tensors, in every process, by their means over the processes."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors]) / self.count
        dist.all_reduce(flat)
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))

    def close(self) -> None:
        """Leave the group of processes."""
        if self.count > 1:
            dist.destroy_process_group()


def _rendezvous(folder: Path) -> Path:
    return folder.resolve() / "rendezvous"


def run_workers(function: Callable[..., None], count: int, folder: Path, *args: Any) -> None:
    """Call function(rank, count, *args) in each of count processes and wait for all of them.

    Args:
        function: a module's function.
        count: number of processes; with one, the call is made here.
        folder: where the processes find each other.
        args: the function's further arguments.
    """
    _rendezvous(folder).unlink(missing_ok=True)
    if count == 1:
        function(0, 1, *args)
        return
    mp.spawn(function, args=(count, *args), nprocs=count)  # type: ignore[attr-defined,no-untyped-call]
