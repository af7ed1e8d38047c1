"""Writes rank files: the header from the plan first, then the tensors' bytes piece by piece.

Memory holds one piece at a time, however large the model is. A checkpoint's file that is to be the
same in an engine is linked, and compared with what would have been written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import Target, stored_plan
from trtla.formats.tensors import TensorSource, stream, torch_dtype
from trtla.formats.weight_files import header_bytes, tensor_bytes

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


class Digest(Protocol):
    """A hash of hashlib's, as far as it is used here."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""


def weight_bytes(config: CheckpointConfig, without: Collection[int] = ()) -> int:
    """Bytes of all tensors of all ranks, or of all but some."""
    ranks = [rank for rank in range(config.mapping.world_size) if rank not in without]
    return sum(target.nbytes for rank in ranks for target in stored_plan(config, rank))


def link_ranks(checkpoint: Path, folder: Path, config: CheckpointConfig) -> frozenset[int]:
    """Link a checkpoint's rank files into a folder; returns the ranks for which that was possible.

    Only files that `write_ranks` laid out are linked, of the owner and the mode that new ones have.
    What replaces either folder makes new files, so the other one stays as it is.
    """

    def linked(rank: int) -> bool:
        name = f"rank{rank}.safetensors"
        return _link(checkpoint / name, folder / name, stored_plan(config, rank))

    return frozenset(filter(linked, range(config.mapping.world_size)))


def _link(source: Path, target: Path, plan: Sequence[Target]) -> bool:
    header = _header(plan)
    try:
        target.touch()
        if _access(target) != _access(source):
            return False
        target.unlink()
        os.link(source, target)
    except OSError:  # another file system, or one without links
        return False
    size = len(header) + sum(tensor.nbytes for tensor in plan)
    with target.open("rb") as file:
        if target.stat().st_size == size and file.read(len(header)) == header:
            return True
    target.unlink()
    return False


def _access(path: Path) -> tuple[int, int, int]:
    """Whose it is and who may read it; of a symbolic link its own."""
    found = path.lstat()
    return found.st_mode, found.st_uid, found.st_gid


def _header(plan: Sequence[Target]) -> bytes:
    return header_bytes((target.name, target.shape, torch_dtype(target.dtype)) for target in plan)


def write_ranks(
    folder: Path,
    config: CheckpointConfig,
    source: TensorSource,
    progress: Progress | None = None,
    digest: Digest | None = None,
    linked: Collection[int] = (),
) -> None:
    """Write every rank file of a checkpoint into a folder.

    Args:
        folder: an existing folder.
        config: dtype and mapping of what is written.
        source: gives the rows of the tensors.
        progress: called after every piece.
        digest: updated with names and bytes in file order.
        linked: ranks whose file is there, of `link_ranks`; it is compared and not written.

    Raises:
        OSError: the disk is full, at the start if that is known then.
        UsageError: a source file ends early or is replaced, or a value does not fit the dtype.
    """
    done, total = 0, weight_bytes(config)
    if shutil.disk_usage(folder).free < weight_bytes(config, without=linked):
        raise OSError(errno.ENOSPC, "no space left")
    for rank in range(config.mapping.world_size):
        plan, path = stored_plan(config, rank), folder / f"rank{rank}.safetensors"
        put = _compare if rank in linked else _write_all
        with path.open("rb") if rank in linked else path.open("wb", buffering=0) as file:
            put(file, memoryview(_header(plan)))
            for target in plan:
                if digest is not None:
                    digest.update(target.name.encode())
                for piece in stream(target, source):
                    data = tensor_bytes(piece)
                    if digest is not None:
                        digest.update(data)
                    put(file, data)
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


def _compare(file: BinaryIO, data: memoryview) -> None:
    """Read what would have been written."""
    if file.read(len(data)) != data.tobytes():
        raise UsageError(
            f"the checkpoint's {Path(file.name).name} was replaced while it was read",
            "build again when nothing writes to the checkpoint",
        )
