"""The ranks that run one model: their process groups and messages.

On CPUs they talk through gloo; on GPUs sums go through NCCL and everything else through gloo. The
groups are the model's own: a program's default group of torch.distributed is left alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from numpy import ndarray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trtla.errors import RankLost, TrtlaError, first_line, sentence
from trtla.runtime.device import Device
from trtla.runtime.ranks.place import OPENING, Place

if TYPE_CHECKING:
    from trtla.runtime.ranks.launch import Started

_SERVING = timedelta(days=365)
_FRAME, _HEAD = 8192, 8
"""Bytes of a message that one broadcast brings, and of its length; a longer one takes a second."""
_LOOK_EVERY_S, _LOOKS = 0.1, 10
_LOOPBACK = "127.0.0.1"
_models = count()
"""The number of models that this process has opened on torchrun's ranks."""


def torchrun_store() -> Store:
    """Return the store of the ranks that torchrun started; raises `TrtlaError` if it is
    unreachable.

    Each model has a prefix of its own: all ranks open their models in the same order.
    """
    try:
        store: Store = next(iter(rendezvous("env://", timeout=OPENING)))[0]
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TrtlaError(
            f"the ranks cannot connect at {address}: {first_line(error)}",
            "choose another --master-port, or let torchrun choose one with --standalone",
        ) from error
    return PrefixStore(f"trtla-{next(_models)}", store)


T = TypeVar("T")


def _watching(act: Callable[[], T], others: Started | None) -> T:
    """Wait for an operation of other ranks: until Ctrl-C, or one of them has ended."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="trtla-connecting", daemon=True).start()
    while not answer.done():
        wait([answer], _LOOK_EVERY_S)
        problem = others.problem() if others is not None and not answer.done() else None
        if problem is not None:
            raise _rank_lost(problem)
    try:
        return answer.result()
    except RankLost as error:
        raise _explained(error, others) from error


def _explained(error: RankLost, others: Started | None) -> RankLost:
    """Add the exit code of a rank that has ended, which is known a little after its connections."""
    for _ in range(_LOOKS if others is not None else 0):
        problem = others.problem() if others is not None else None
        if problem is not None:
            return _rank_lost(problem)
        time.sleep(_LOOK_EVERY_S)
    return error


class World:
    """All ranks, as one of them sees them. One thread at a time may be inside."""

    def __init__(
        self, store: Store, place: Place, device: Device, others: Started | None = None
    ) -> None:
        self.place, self._others = place, others
        self._opening: Any = None
        self._serving: Any = None
        self._device_group: Any = None
        _worlds.add(self)
        _watching(lambda: self._connect(store, device), others)

    def _connect(self, store: Store, device: Device) -> None:
        place = self.place
        with _lost():
            self._opening = _gloo(PrefixStore("opening", store), place, OPENING)
            self._serving = _gloo(PrefixStore("serving", store), place, _SERVING)
            if device.type == "cuda":
                nccl = PrefixStore("sums", store)
                options = dist.ProcessGroupNCCL.Options()
                with torch.cuda.device(str(device)):
                    group: Any = dist.ProcessGroupNCCL(nccl, place.rank, place.size, options)
                    group.allreduce([torch.zeros(1, device=str(device))]).wait()  # it connects
                self._device_group = group
            self._opening.barrier().wait()  # from here on no rank needs the store

    @property
    def leads(self) -> bool:
        """True on rank 0, which takes the requests."""
        return self.place.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in JSON's types, in the order of the ranks."""
        data = _bytes(json.dumps(value).encode())
        return _watching(lambda: self._gather(data), self._others)

    def _gather(self, data: Tensor) -> list[Any]:
        sizes = self._all(torch.tensor([len(data)]))
        room = torch.zeros(int(max(size.item() for size in sizes)), dtype=torch.uint8)
        room[: len(data)] = data
        encoded = zip(self._all(room), sizes, strict=True)
        return [json.loads(bytes(part[: int(size)].tolist())) for part, size in encoded]

    def _all(self, tensor: Tensor, group: Any = None) -> list[Tensor]:
        """Return the tensors of all ranks, alike in shape."""
        parts = [torch.empty_like(tensor) for _ in range(self.place.size)]
        with _lost():
            (group or self._opening).allgather([parts], [tensor.contiguous()]).wait()
        return parts

    def broadcast(self, message: Any) -> None:
        """Send all ranks a message in JSON's types, from rank 0."""
        data = json.dumps(message, separators=(",", ":")).encode()
        framed = _bytes(len(data).to_bytes(_HEAD, "little") + data)
        frame = torch.zeros(_FRAME, dtype=torch.uint8)
        frame[: len(framed)] = framed[:_FRAME]
        self._broadcast(frame)
        if len(framed) > _FRAME:
            self._broadcast(framed)

    def receive(self) -> Any:
        """Wait for rank 0's next message."""
        frame = torch.empty(_FRAME, dtype=torch.uint8)
        self._broadcast(frame)
        end = _HEAD + int.from_bytes(bytes(frame[:_HEAD].tolist()), "little")
        if end > _FRAME:
            frame = torch.empty(end, dtype=torch.uint8)
            self._broadcast(frame)
        return json.loads(frame[_HEAD:end].numpy().tobytes())

    def _broadcast(self, frame: Tensor) -> None:
        with _lost():
            self._serving.broadcast(frame, 0).wait()

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of all ranks' parts, on every rank.

        On CPUs in float32 and in the order of the ranks: its bits do not depend on the rest of the
        batch, as they would in gloo's own sums of more than two ranks.
        """
        if self._device_group is not None:
            self._device_group.allreduce([part]).wait()
            return part
        parts = self._all(part, self._serving)
        total = parts[0].float()
        for other in parts[1:]:
            total = total + other.float()
        return total.to(part.dtype)

    def exchange(self, part: ndarray) -> list[ndarray]:
        return [tensor.numpy() for tensor in self._all(torch.from_numpy(part), self._serving)]

    def join_columns(self, part: Tensor, width: int) -> Tensor:
        """Join the ranks' columns: [rows, width] of parts [rows, equally many]."""
        group = self._device_group if self._device_group is not None else self._serving
        return torch.cat(self._all(part, group), dim=-1)[:, :width].contiguous()

    def close(self) -> None:
        """Leave the groups; ranks that wait for this one raise an error."""
        self._opening = self._serving = self._device_group = None
        others, self._others = self._others, None
        if others is not None:
            others.end()

    def leave_to_parent(self) -> None:
        """Release the other ranks in a forked process, and never free the groups.

        Freeing them waits for threads that only the parent has.
        """
        for group in (self._opening, self._serving, self._device_group):
            if group is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        others, self._others = self._others, None
        if others is not None:
            others.let_go()

    def check(self) -> None:
        problem = None if self._others is None else self._others.problem()
        if problem is not None:
            raise _rank_lost(problem)

    def failure(self, error: BaseException) -> RankLost:
        if isinstance(error, RankLost):
            return _explained(error, self._others)
        return RankLost(
            f"a step of the ranks has failed: {sentence(error)}", "open the model again"
        )


_worlds: weakref.WeakSet[World] = weakref.WeakSet()


def _after_fork() -> None:
    for world in list(_worlds):
        world.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _gloo(store: Store, place: Place, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    local = place.on_machine == place.size
    options._devices = [
        gloo.create_device(hostname=_LOOPBACK) if local else gloo.create_default_device()
    ]
    options._timeout = timeout
    return gloo(store, place.rank, place.size, options)


def lost_in_step() -> RankLost:
    """Return the error about a rank that does not add its part to a sum."""
    return _rank_lost("it has ended within a step")


def _rank_lost(why: str) -> RankLost:
    return RankLost(
        f"another rank does not answer: {why}",
        "see what it has written above; then open the model again",
    )


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        why = first_line(error)
        if "closed by peer" in why or "reset by peer" in why:
            why = "its connection has closed"
        raise _rank_lost(why) from error
