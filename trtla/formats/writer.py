"""Streams rank files: the header from the plan first, then the tensors' bytes piece by piece.

Memory holds one piece at a time, however large the model is. A digest over the same bytes, if asked
for, costs no second reading.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch

from trtla.formats.checkpoint import TensorSource, stream, torch_dtype
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import Target, rank_plan
from trtla.formats.weight_files import header_bytes, tensor_bytes

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


def weight_bytes(config: CheckpointConfig) -> int:
    """Bytes of all tensors of all ranks."""
    return sum(
        target.nbytes
        for rank in range(config.mapping.world_size)
        for target in rank_plan(config, rank)
    )


class RankWriter:
    """Writes every rank file of a checkpoint into a folder.

    Args:
        folder: an existing folder.
        config: dtype and mapping of what is written.
        progress: called after every piece.
        digest: updated with names and bytes in file order.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        progress: Progress | None = None,
        digest: BackgroundHash | None = None,
    ) -> None:
        self._folder, self._config = folder, config
        self._progress, self._digest = progress, digest
        self._done, self._total = 0, weight_bytes(config)

    def write(self, source: TensorSource) -> int:
        """Write all ranks and return the bytes of their tensors.

        Raises:
            OSError: the disk is full, at the start if that can be told.
            UsageError: a source file ends early, or a value does not fit the dtype.
        """
        if shutil.disk_usage(self._folder).free < self._total:
            raise OSError(errno.ENOSPC, "no space left")
        for rank in range(self._config.mapping.world_size):
            plan = rank_plan(self._config, rank)
            path = self._folder / f"rank{rank}.safetensors"
            with path.open("wb", buffering=0) as file:
                self._write_rank(file, plan, source)
        return self._total

    def _write_rank(self, file: BinaryIO, plan: Sequence[Target], source: TensorSource) -> None:
        tensors = ((target.name, target.shape, torch_dtype(target.dtype)) for target in plan)
        write_all(file, memoryview(header_bytes(tensors)))
        for target in plan:
            if self._digest is not None:
                self._digest.update(target.name.encode())
            for piece in stream(target, source):
                self._write_piece(file, piece)

    def _write_piece(self, file: BinaryIO, piece: torch.Tensor) -> None:
        data = tensor_bytes(piece)
        if self._digest is not None:
            self._digest.update(data)
        write_all(file, data)
        _start_writeback(file, len(data))
        self._done += len(data)
        if self._progress is not None:
            self._progress(self._done, self._total)


def write_all(file: BinaryIO, data: memoryview) -> None:
    """Write every byte; an unbuffered file may take a part at a time."""
    while data:
        data = data[file.write(data) :]


def _start_writeback(file: BinaryIO, size: int) -> None:
    """Let the disk begin with what was written last, so that the flush at the end is short."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), file.tell() - size, size, os.POSIX_FADV_DONTNEED)


class BackgroundHash:
    """A sha256 that works on one piece while the caller reads and writes the next.

    The caller must not change a piece before the next `update` returns. A context manager: leaving
    it ends the thread.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._pending: Future[None] | None = None

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes; waits for the piece before."""
        self._wait()
        self._pending = self._pool.submit(self._sha256.update, data)

    def hexdigest(self) -> str:
        """The digest of everything so far, in hexadecimal."""
        self._wait()
        return self._sha256.hexdigest()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def __enter__(self) -> BackgroundHash:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
