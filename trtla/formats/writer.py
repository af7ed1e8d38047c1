"""Writes rank files: the header from the plan first, then the tensors' bytes piece by piece.

Memory holds one piece at a time, however large the model is.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import stored_plan
from trtla.formats.tensors import TensorSource, stream, torch_dtype
from trtla.formats.weight_files import header_bytes, tensor_bytes

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


class Digest(Protocol):
    """A hash of hashlib's, as far as it is used here."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""


def weight_bytes(config: CheckpointConfig) -> int:
    """Bytes of all tensors of all ranks."""
    ranks = range(config.mapping.world_size)
    return sum(target.nbytes for rank in ranks for target in stored_plan(config, rank))


def write_ranks(
    folder: Path,
    config: CheckpointConfig,
    source: TensorSource,
    progress: Progress | None = None,
    digest: Digest | None = None,
) -> None:
    """Write every rank file of a checkpoint into a folder.

    Args:
        folder: an existing folder.
        config: dtype and mapping of what is written.
        source: gives the rows of the tensors.
        progress: called after every piece.
        digest: updated with names and bytes in file order.

    Raises:
        OSError: the disk is full, at the start if that is known then.
        UsageError: a source file ends early, or a value does not fit the dtype.
    """
    done, total = 0, weight_bytes(config)
    if shutil.disk_usage(folder).free < total:
        raise OSError(errno.ENOSPC, "no space left")
    for rank in range(config.mapping.world_size):
        plan = stored_plan(config, rank)
        with (folder / f"rank{rank}.safetensors").open("wb", buffering=0) as file:
            tensors = ((target.name, target.shape, torch_dtype(target.dtype)) for target in plan)
            _write_all(file, memoryview(header_bytes(tensors)))
            for target in plan:
                if digest is not None:
                    digest.update(target.name.encode())
                for piece in stream(target, source):
                    data = tensor_bytes(piece)
                    if digest is not None:
                        digest.update(data)
                    _write_all(file, data)
                    done += len(data)
                    if progress is not None:
                        progress(done, total)


def _write_all(file: BinaryIO, data: memoryview) -> None:
    """Write every byte; an unbuffered file may take a part at a time."""
    size = len(data)
    while data:
        data = data[file.write(data) :]
    if hasattr(os, "posix_fadvise"):  # start the disk now, so that the flush at the end is short
        os.posix_fadvise(file.fileno(), file.tell() - size, size, os.POSIX_FADV_DONTNEED)
