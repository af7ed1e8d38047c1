"""Builds the ranks one after the other, or several at a time in processes of their own.

A worker builds every n-th rank, on the GPU of its number, as `trtllm-build --workers` does. The
first rank that fails ends the others.
"""

from __future__ import annotations

import errno
import multiprocessing
import signal
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from trtla.build.trtllm_rank import RankBuild
from trtla.errors import TrtlaError, sentence

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank was not built; `disk` is the errno where the disk was at fault."""

    rank: int
    said: str
    trace: str
    disk: int | None = None

    def error(self) -> Exception:
        """As an exception, whichever process it came from."""
        if self.disk is not None:
            return OSError(self.disk, self.said)
        error = TrtlaError(
            f"TensorRT-LLM cannot build rank {self.rank}: {self.said}",
            "its log above tells more; --verbose adds the traceback",
        )
        error.__cause__ = RuntimeError(self.trace)
        return error


def build_ranks(build: RankBuild, ranks: int, workers: int) -> None:
    """Build all ranks with up to `workers` processes; one builds in this process.

    Raises:
        TrtlaError: a rank could not be built; it is named.
        OSError: a rank could not be written.
    """
    if min(ranks, workers) == 1:
        failure = next(filter(None, (_attempt(build, rank, 0) for rank in range(ranks))), None)
        if failure is not None:
            raise failure.error()
        return
    _run(build, ranks, min(ranks, workers))


def _attempt(build: RankBuild, rank: int, gpu: int) -> Failure | None:
    try:
        build.build(rank, gpu)
    except Exception as error:  # TensorRT-LLM raises AssertionError, RuntimeError and others
        number = error.errno if isinstance(error, OSError) else None
        disk = number if number in _DISK else None
        return Failure(rank, sentence(error), traceback.format_exc(), disk)
    return None


def _run(build: RankBuild, ranks: int, workers: int) -> None:
    """Start the workers and wait until all have ended, or one has failed."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    processes: dict[Connection, BaseProcess] = {}
    try:
        for gpu in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(build, range(gpu, ranks, workers), gpu, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        _wait(processes, dict(zip(processes, range(workers), strict=True)))
    finally:
        for started in processes.values():
            started.kill()
            started.join()


def _work(build: RankBuild, ranks: Iterable[int], gpu: int, out: Connection) -> None:
    """In a process of its own: tell every rank as it begins, and the failure that ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    for rank in ranks:
        out.send(rank)
        failure = _attempt(build, rank, gpu)
        if failure is not None:
            out.send(failure)
            return
    out.send(None)


def _wait(processes: dict[Connection, BaseProcess], current: dict[Connection, int]) -> None:
    """Read what the workers tell; `current` is the rank that each is at."""
    open_ends = set(processes)
    while open_ends:
        for end in open_ends.intersection(wait(open_ends)):
            try:
                told = end.recv()
            except EOFError:  # killed, or crashed inside the library
                raise _died(processes[end], current[end]) from None
            if told is None:
                open_ends.remove(end)
            elif isinstance(told, Failure):
                raise told.error()
            else:
                current[end] = told


def _died(process: BaseProcess, rank: int) -> TrtlaError:
    process.join()
    return TrtlaError(
        f"TensorRT-LLM cannot build rank {rank}: its process ended with exit code "
        f"{process.exitcode}",
        "its log above tells more; a killed process (-9) often ran out of memory: use fewer "
        "--workers",
    )
