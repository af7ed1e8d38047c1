"""Bringing the ranks together: which one this process is, and that all open the same model."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from trtla.errors import UsageError
from trtla.runtime.ranks.shared_memory import SharedMemory, SharedRoom, shared_memory
from trtla.runtime.ranks.world import World
from trtla.version import __version__


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a rank's model adds its sums with."""

    world: World
    shared: SharedMemory | None
    """For the compiled forward; None: sums go through the process groups."""
    whole: bool = False
    """Whether each has the whole model: lookahead parallelism."""

    @property
    def split(self) -> Ranks | None:
        """Themselves where they split the model; None: each runs one of its own."""
        return None if self.whole else self

    @property
    def description(self) -> str:
        """What a description says of them; models that are split say it themselves."""
        return f", lookahead on {self.world.place.size} ranks" if self.whole else ""

    @property
    def on_machine(self) -> int:
        """How many of them share this machine's memory."""
        return self.world.place.on_machine

    def leave(self) -> None:
        if self.shared is not None:
            self.shared.leave()
        self.world.close()


def check_same(world: World, what: dict[str, object]) -> None:
    """Compare what all ranks must have in common."""
    mine = {**what, "version of trtla": __version__, "version of PyTorch": torch.__version__}
    for rank, theirs in enumerate(world.gather(mine)):
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise UsageError(
                    f"the {name} of rank {world.place.rank} is {value}, and that of rank {rank} is "
                    f"{theirs.get(name)}",
                    "start all ranks with the same model, flags and versions",
                )


def joined(world: World, room: SharedRoom, compiled: bool) -> Ranks:
    """The ranks, with shared memory where all have the compiled forward."""
    together = all(world.gather(compiled))
    return Ranks(world, shared_memory(world, room) if together else None)


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
