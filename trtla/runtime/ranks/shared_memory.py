"""Memory that the ranks of one machine share: the parts of their sums, and the logits.

gloo takes over a millisecond for a sum between two processes, and a step has two a layer; here a
sum costs what reading its parts costs. The memory has no name in any folder: it is gone when the
last rank has ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.errors import TrtlaError
from trtla.runtime.ranks.world import World

_LINE = 64
"""Bytes of a rank's count of meetings: a line of the processor's cache."""
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """How large the memory is; pages that are never written take none."""

    tokens: int
    hidden: int
    rows: int
    vocabulary: int

    def check(self, tokens: int, rows: int) -> None:
        """Refuse a step that is larger."""
        if tokens > self.tokens or rows > self.rows:
            raise TrtlaError(
                f"a step of {tokens} tokens and {rows} rows of logits is larger than the ranks "
                f"share memory for, which is {self.tokens} and {self.rows}",
                "lower --max-batch-size, or rebuild with a larger --max-num-tokens",
            )


class SharedMemory:
    """One rank's view of the memory; `shared_memory` makes it."""

    def __init__(self, file: int, world: World, room: SharedRoom) -> None:
        self.file, self.room, self.place = file, room, world.place
        ranks = world.place.size
        self.part_size = room.tokens * room.hidden
        _, arrivals, parts, logits, end = _starts(ranks, room)
        self._map = mmap.mmap(file, end)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.arrivals, self.parts = whole[arrivals:].data_ptr(), whole[parts:].data_ptr()
        size = room.rows * room.vocabulary * 4
        numbers = whole[logits : logits + size].view(torch.float32)
        self.logits: Tensor = numbers.view(room.rows, room.vocabulary)
        """Of a step's rows; every rank writes its columns."""
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, world.place.rank)
        self._close = weakref.finalize(self, os.close, file)

    def leave(self) -> None:
        """Let go of what says that this rank is there: with the descriptor goes its lock."""
        self._close()


def _starts(ranks: int, room: SharedRoom) -> tuple[int, ...]:
    arrivals = mmap.PAGESIZE
    parts = arrivals + _pages(ranks * _LINE)
    logits = parts + _pages(2 * ranks * room.tokens * room.hidden * 4)
    return 0, arrivals, parts, logits, logits + _pages(room.rows * room.vocabulary * 4)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def shared_memory(world: World, room: SharedRoom) -> SharedMemory | None:
    """The same memory on every rank; None on all of them where one cannot have it."""
    token, path, own = secrets.token_hex(_TOKEN_BYTES // 2).encode(), "", None
    if world.leads and hasattr(os, "memfd_create"):
        own = _made(world, room, token)
        path = "" if own is None else f"/proc/{os.getpid()}/fd/{own.file}"
    path, known = world.gather([path, token.decode()])[0]
    if not world.leads:
        own = _opened(world, room, path, known.encode())
    if all(world.gather(own is not None)):
        return own
    if own is not None:
        own.leave()
    return None


def _made(world: World, room: SharedRoom, token: bytes) -> SharedMemory | None:
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


def _opened(world: World, room: SharedRoom, path: str, token: bytes) -> SharedMemory | None:
    """Of rank 0's process; on another machine or in another container its path is somebody else's
    or nobody's."""
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
