"""Opening a model on several ranks: consistency checks, shared memory and cores.

The ranks of one machine share memory for the parts of their sums, and for logits. gloo takes over a
millisecond for a sum between two processes, and a step has two a layer; here a sum costs as much as
reading its parts. The memory has no name in any folder: it is freed when the last rank has ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
import weakref
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from trtla.errors import TrtlaError, UsageError, named
from trtla.runtime.arrays import address
from trtla.runtime.threads import num_threads, set_threads
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.runtime.ranks.world import World

_LINE = 64
"""Bytes of a rank's counter of synchronisations: a cache line of the processor."""
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """The size of the memory; pages that are never written take none."""

    tokens: int
    hidden: int
    rows: int
    vocabulary: int

    def check(self, tokens: int, rows: int) -> None:
        if tokens > self.tokens or rows > self.rows:
            raise TrtlaError(
                f"a step of {tokens} tokens and {rows} rows of logits is larger than the ranks "
                f"share memory for, which is {self.tokens} and {self.rows}",
                f"lower {named('max_batch_size')}, or rebuild with a larger --max-num-tokens",
            )


class SharedMemory:
    """One rank's view of the memory; made by `shared_memory`."""

    def __init__(self, file: int, world: World, room: SharedRoom) -> None:
        self.file, self.room, self.place = file, room, world.place
        ranks = world.place.size
        self.part_size = room.tokens * room.hidden
        _, arrivals, parts, logits, end = _starts(ranks, room)
        self._map = mmap.mmap(file, end)
        whole = np.frombuffer(self._map, np.uint8)
        self.arrivals, self.parts = address(whole) + arrivals, address(whole) + parts
        size = room.rows * room.vocabulary * 4
        numbers = whole[logits : logits + size].view(np.float32)
        self.logits: np.ndarray = numbers.reshape(room.rows, room.vocabulary)
        """The logits of a step's rows; every rank writes its columns."""
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, world.place.rank)
        self._close = weakref.finalize(self, os.close, file)

    def leave(self) -> None:
        """Close the descriptor, and release its lock, which shows that this rank is alive."""
        self._close()


def _starts(ranks: int, room: SharedRoom) -> tuple[int, ...]:
    arrivals = mmap.PAGESIZE
    parts = arrivals + _pages(ranks * _LINE)
    logits = parts + _pages(2 * ranks * room.tokens * room.hidden * 4)
    return 0, arrivals, parts, logits, logits + _pages(room.rows * room.vocabulary * 4)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def shared_memory(world: World, room: SharedRoom) -> SharedMemory | None:
    """Return the same memory on every rank; None on all of them if one cannot have it."""
    token, path, memory = secrets.token_hex(_TOKEN_BYTES // 2).encode(), "", None
    if world.leads and hasattr(os, "memfd_create"):
        memory = _create(world, room, token)
        path = "" if memory is None else f"/proc/{os.getpid()}/fd/{memory.file}"
    path, known = world.gather([path, token.decode()])[0]
    if not world.leads:
        memory = _open(world, room, path, known.encode())
    if all(world.gather(memory is not None)):
        return memory
    if memory is not None:
        memory.leave()
    return None


def _create(world: World, room: SharedRoom, token: bytes) -> SharedMemory | None:
    try:
        file = os.memfd_create("trtla")
    except OSError:
        return None
    try:
        os.truncate(file, _starts(world.place.size, room)[-1])
        os.pwrite(file, token, 0)
        return SharedMemory(file, world, room)
    except OSError:
        os.close(file)
        return None


def _open(world: World, room: SharedRoom, path: str, token: bytes) -> SharedMemory | None:
    """Open the memory of rank 0's process; on another machine or in another container its path
    leads elsewhere or nowhere."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if os.pread(file, _TOKEN_BYTES, 0) == token:
            return SharedMemory(file, world, room)
    except OSError:
        pass
    os.close(file)
    return None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes and the shared memory for a rank's sums."""

    world: World
    shared: SharedMemory | None
    """For the compiled forward; None: sums go through the process groups."""
    whole: bool = False
    """True if each has the whole model: lookahead parallelism."""

    @property
    def split(self) -> Ranks | None:
        """The ranks if they split the model; None if each runs a whole one."""
        return None if self.whole else self

    @property
    def description(self) -> str:
        """Words for an executor's description; split models describe themselves."""
        return f", lookahead on {self.world.place.size} ranks" if self.whole else ""

    @property
    def on_machine(self) -> int:
        return self.world.place.on_machine

    def leave(self) -> None:
        if self.shared is not None:
            self.shared.leave()
        self.world.close()


def check_same(world: World, facts: dict[str, object]) -> None:
    """Compare the facts that all ranks must have in common."""
    mine = {**facts, "version of trtla": __version__, "version of PyTorch": version("torch")}
    for rank, theirs in enumerate(world.gather(mine)):
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise UsageError(
                    f"the {name} of rank {world.place.rank} is {value}, and that of rank {rank} is "
                    f"{theirs.get(name)}",
                    "start all ranks with the same model, flags and versions",
                )


def joined(world: World, room: SharedRoom, compiled: bool) -> Ranks:
    """Return the ranks, with shared memory if all have the compiled forward."""
    together = all(world.gather(compiled))
    return Ranks(world, shared_memory(world, room) if together else None)


@dataclass(slots=True)
class _Sharing:
    models: int = 0
    before: int = 0
    """Threads before the first model."""


_sharing, _lock = _Sharing(), threading.Lock()


def share_cores(most: int) -> int:
    """Use at most this many threads until `give_back_cores`; return their number."""
    with _lock:
        if not _sharing.models:
            _sharing.before = num_threads()
        _sharing.models += 1
        set_threads(max(1, min(num_threads(), most)))
        return num_threads()


def give_back_cores() -> None:
    """Close one model; with the last one the number of threads returns to what it was."""
    with _lock:
        if not _sharing.models:
            return
        _sharing.models -= 1
        if not _sharing.models:
            set_threads(_sharing.before)
