"""A TensorRT-LLM checkpoint folder: config.json and rank files, checked, read lazily, and written.

A checkpoint of any tp and pp reads as the model before the split: fused q, k and v come apart,
copies of K/V heads and vocabulary padding vanish, layers have their global numbers again.

Rank files are written piece by piece: memory holds one, however large the model is. A checkpoint's
file that is to be the same in an engine is linked, and compared with the bytes to be written.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.files import validate
from trtla.formats.config import DTYPES, FP8, CheckpointConfig
from trtla.formats.model_folder import CONFIG, ModelFolder
from trtla.formats.plan import (
    Block,
    Target,
    rank_plan,
    single_rank,
    source_shapes,
    stored_plan,
    untied,
)
from trtla.formats.shapes import EMBEDDING, LM_HEAD
from trtla.formats.support import check_mapping, check_supported
from trtla.formats.tensors import (
    E4M3,
    TensorSource,
    Weight,
    equal_ends,
    numpy_dtype,
    rank_tensors,
    stream,
)
from trtla.formats.weight_files import (
    SafetensorsFile,
    array_bytes,
    header_bytes,
    raise_first,
    tensor_problems,
)

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""
_REMAKE = "make it again with trtla convert"
_Rank = tuple[SafetensorsFile, Sequence[Target]]
"""A rank's file and its tensors."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """The location of a block of a Hugging Face tensor: file, tensor, first row in that tensor."""

    file: SafetensorsFile
    name: str
    row: int
    block: Block
    fp8: bool

    def read(self, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of the Hugging Face tensor, in the columns of the block."""
        offset = self.row - self.block.rows[0]
        rows = self.file.read(self.name, start + offset, stop + offset)
        return rows.view(E4M3) if self.fp8 else rows


class Checkpoint:
    """The rank files of a checkpoint or torch engine, a source of Hugging Face named tensors."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self._stored = config
        self._shapes = source_shapes(config)
        self._where: dict[str, list[_Placement]] = {}
        ranks, problems = _open_ranks(folder, config)
        raise_first(problems)
        for file, plan in ranks:
            self._add(file, plan)
        if LM_HEAD not in self._where:
            _check_shared(folder, config)
            self._where[LM_HEAD] = self._where[EMBEDDING]

    @cached_property
    def config(self) -> CheckpointConfig:
        """The config of config.json, untied if the stored lm_head differs from the embedding."""
        stored, same = self._stored, self._where[LM_HEAD] is self._where[EMBEDDING]
        if not stored.tie_word_embeddings or same or equal_ends(self, stored.vocab_size):
            return stored
        return untied(stored)

    @classmethod
    def open(cls, location: str | Path | ModelFolder) -> Checkpoint:
        """Check config.json and every rank file's header; no weights are read."""
        folder = ModelFolder.of(location)
        path = folder.path
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder", "give the --output-dir of trtla convert")
        config = read_checkpoint_config(folder)
        check_config(path, config)
        return cls(path, config)

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a Hugging Face tensor, put together from the ranks."""
        width = self._shapes[name][1:]
        blocks = [
            at
            for at in self._where[name]
            if max(start, at.block.rows[0]) < min(stop, at.block.rows[1])
        ]
        if len(blocks) == 1 and blocks[0].block.cols in (None, (0, *width)):
            return blocks[0].read(start, stop)
        spans = [(max(start, at.block.rows[0]), min(stop, at.block.rows[1])) for at in blocks]
        parts = [at.read(*span) for at, span in zip(blocks, spans, strict=True)]
        out = np.empty((stop - start, *width), parts[0].dtype)
        for at, (first, last), part in zip(blocks, spans, parts, strict=True):
            view = out[first - start : last - start]
            view[(slice(None), slice(*at.block.cols)) if at.block.cols else ...] = part
        return out

    def close(self) -> None:
        """Close the rank files; the next read opens them again."""
        for blocks in self._where.values():
            for at in blocks:
                at.file.close()

    def full_tensors(self) -> Iterator[tuple[str, Weight]]:
        """Load the tensors of the model on one rank, see `rank_tensors`."""
        tensors = rank_tensors(self, single_rank(self.config), 0)
        return ((name, tensor.load()) for name, tensor in tensors)

    def _add(self, file: SafetensorsFile, plan: Iterable[Target]) -> None:
        for target in plan:
            row = 0
            for block in target.blocks:
                if block.source is not None:
                    known = self._where.setdefault(block.source, [])
                    if all(at.block != block for at in known):  # one of the copies is enough
                        known.append(_Placement(file, target.name, row, block, target.dtype == FP8))
                row += block.height


def _check_shared(folder: Path, config: CheckpointConfig) -> None:
    embedding, head = (config.block_types.get(name, config.dtype) for name in (EMBEDDING, LM_HEAD))
    if embedding != head:
        raise UsageError(
            f"{folder / 'config.json'}: {LM_HEAD} is {head}, but the files hold only the "
            f"embedding, which is {embedding}",
            _REMAKE,
        )


def read_checkpoint_config(folder: ModelFolder) -> CheckpointConfig:
    """A checkpoint's config.json; raises `UsageError` where it is missing or broken."""
    return validate(CheckpointConfig, folder.read(CONFIG), str(folder.path / CONFIG))


def check_config(folder: Path, config: CheckpointConfig) -> None:
    """Refuse a folder's model that trtla cannot run, or whose split is impossible."""
    check_supported(config, str(folder / "config.json"))
    check_mapping(config)


def rank_problems(folder: Path, config: CheckpointConfig) -> list[UsageError]:
    """Everything wrong with the rank files of a folder whose config.json is sound."""
    return _open_ranks(folder, config)[1]


def _open_ranks(folder: Path, config: CheckpointConfig) -> tuple[list[_Rank], list[UsageError]]:
    problems: list[UsageError] = []
    ranks: list[_Rank] = []
    for rank in range(config.mapping.world_size):
        try:
            file = SafetensorsFile(folder / f"rank{rank}.safetensors")
        except UsageError as error:
            problems.append(error)
            continue
        plan = [t for t in rank_plan(config, rank) if not _may_lack(t.name, file, config)]
        shapes = {target.name: target.shape for target in plan}
        types = {target.name: target.dtype for target in plan if target.dtype not in DTYPES}
        problems += tensor_problems(str(file.path), file.entries, shapes, _REMAKE, types)
        ranks.append((file, plan))
    with ExitStack() as stack:
        for file, _ in ranks:
            stack.callback(file.close)
        return ranks, problems or _scale_problems(ranks)


def _may_lack(name: str, file: SafetensorsFile, config: CheckpointConfig) -> bool:
    """TensorRT-LLM takes the embedding for a tied lm_head that is not in the file."""
    tied = config.tie_word_embeddings and config.mapping.pp_size == 1
    unsplit = config.mapping.tp_size == 1 or not config.use_parallel_embedding
    return name == LM_HEAD and name not in file.entries and tied and unsplit


def _scale_problems(ranks: Iterable[_Rank]) -> list[UsageError]:
    """FP8 scales that are no positive number, or that differ where ranks share a tensor."""
    problems: list[UsageError] = []
    known: dict[str | None, float] = {}
    for file, plan in ranks:
        for target in plan:
            if not target.name.endswith("_scaling_factor") or target.shape != (1,):
                continue
            value = file.read(target.name, 0, 1).item()
            first = known.setdefault(target.blocks[0].source, value)
            wrong = None if value == first else f"on other ranks {first}"
            if not 0.0 < value < math.inf:
                wrong = "a scale is above 0"
            if wrong:
                problem = f"{file.path}: tensor {target.name} is {value}, {wrong}"
                problems.append(UsageError(problem, _REMAKE))
    return problems


def weight_bytes(config: CheckpointConfig, without: Collection[int] = ()) -> int:
    """Bytes of all tensors of all ranks, or of all but some."""
    ranks = [rank for rank in range(config.mapping.world_size) if rank not in without]
    return sum(target.nbytes for rank in ranks for target in stored_plan(config, rank))


def link_ranks(checkpoint: Path, folder: Path, config: CheckpointConfig) -> frozenset[int]:
    """Link a checkpoint's rank files into a folder; returns the ranks for which that was possible.

    Only files that `write_ranks` laid out are linked, of the owner and the mode that new ones have.
    What replaces either folder makes new files, so the other one stays as it is.
    """
    linked = (
        rank
        for rank in range(config.mapping.world_size)
        if _link(checkpoint, folder, f"rank{rank}.safetensors", stored_plan(config, rank))
    )
    return frozenset(linked)


def _link(checkpoint: Path, folder: Path, name: str, plan: Sequence[Target]) -> bool:
    source, target, header = checkpoint / name, folder / name, _header(plan)
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
    """Mode and owner of a file; of a symbolic link its own."""
    stat = path.lstat()
    return stat.st_mode, stat.st_uid, stat.st_gid


def _header(plan: Sequence[Target]) -> bytes:
    return header_bytes((target.name, target.shape, numpy_dtype(target.dtype)) for target in plan)


def write_ranks(
    folder: Path,
    config: CheckpointConfig,
    source: TensorSource,
    progress: Progress | None = None,
    digest: Callable[[bytes | memoryview], object] | None = None,
    linked: Collection[int] = (),
) -> None:
    """Write every rank file of a checkpoint into a folder.

    Args:
        folder: an existing folder.
        config: dtype and mapping of the files.
        source: gives the rows of the tensors.
        progress: called after every piece.
        digest: called with names and bytes in file order.
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
                    digest(target.name.encode())
                for piece in stream(target, source):
                    data = array_bytes(piece)
                    if digest is not None:
                        digest(data)
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
    if file.read(len(data)) != data.tobytes():
        raise UsageError(
            f"the checkpoint's {Path(file.name).name} was replaced while it was read",
            "build again when nothing writes to the checkpoint",
        )
