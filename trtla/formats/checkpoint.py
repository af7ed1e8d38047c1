"""A TensorRT-LLM checkpoint folder: config.json and rank files, checked and read lazily.

A checkpoint of any tp and pp reads as the model before the split: fused q, k and v come apart,
copies of K/V heads and vocabulary padding vanish, layers have their global numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from trtla.errors import UsageError
from trtla.files import read_json, validate
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import (
    EMBEDDING,
    FP8,
    LM_HEAD,
    Block,
    Span,
    Target,
    check_mapping,
    rank_plan,
    single_rank,
    source_shapes,
)
from trtla.formats.support import check_supported
from trtla.formats.weight_files import SafetensorsFile, raise_first, tensor_problems

_REMAKE = "make it again with trtla convert"


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where a block of a Hugging Face tensor lies: file, tensor, first row in that tensor."""

    file: SafetensorsFile
    name: str
    row: int
    block: Block


_Rank = tuple[SafetensorsFile, Sequence[Target]]
"""A rank's file and what it holds."""


class RankFiles:
    """The rank files of a checkpoint or torch engine, as a source of Hugging Face named tensors.

    Raises:
        UsageError: a file is missing or broken, or holds other tensors than the config says; the
            tensor is named.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self._shapes = source_shapes(config)
        self._where: dict[str, list[_Placement]] = {}
        ranks: list[_Rank] = []
        for rank in range(config.mapping.world_size):
            file = SafetensorsFile(folder / f"rank{rank}.safetensors")
            plan = _expected(file, config, rank)
            raise_first(_problems(file, plan))
            self._add(file, plan)
            ranks.append((file, plan))
        raise_first(_scale_problems(ranks))
        self._where.setdefault(LM_HEAD, self._where[EMBEDDING])

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a Hugging Face tensor, put together from the ranks."""
        width = self._shapes[name][1:]
        places = [at for at in self._where[name] if _overlaps(at.block.rows, (start, stop))]
        if len(places) == 1 and places[0].block.cols in (None, (0, *width)):
            return _rows(places[0], start, stop)
        spans = [(max(start, at.block.rows[0]), min(stop, at.block.rows[1])) for at in places]
        parts = [_rows(at, *span) for at, span in zip(places, spans, strict=True)]
        out = torch.empty((stop - start, *width), dtype=parts[0].dtype)
        for at, (first, last), part in zip(places, spans, parts, strict=True):
            view = out[first - start : last - start]
            (view[:, slice(*at.block.cols)] if at.block.cols else view).copy_(part)
        return out

    def _add(self, file: SafetensorsFile, plan: Iterable[Target]) -> None:
        for target in plan:
            row = 0
            for block in target.blocks:
                if block.source is not None:
                    known = self._where.setdefault(block.source, [])
                    if all(at.block != block for at in known):  # one of the copies is enough
                        known.append(_Placement(file, target.name, row, block))
                row += block.height


def _rows(at: _Placement, start: int, stop: int) -> torch.Tensor:
    offset = at.row - at.block.rows[0]
    rows = at.file.read(at.name, start + offset, stop + offset)
    return rows.view(torch.float8_e4m3fn) if rows.dtype == torch.int8 else rows


def _overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _may_lack(name: str, file: SafetensorsFile, config: CheckpointConfig) -> bool:
    """TensorRT-LLM takes the embedding for a tied lm_head that is not in the file."""
    tied = config.tie_word_embeddings and config.mapping.pp_size == 1
    whole = config.mapping.tp_size == 1 or not config.use_parallel_embedding
    return name == LM_HEAD and name not in file.entries and tied and whole


def rank_problems(folder: Path, config: CheckpointConfig) -> list[UsageError]:
    """Everything wrong with the rank files of a folder whose config.json is sound."""
    problems: list[UsageError] = []
    ranks: list[_Rank] = []
    for rank in range(config.mapping.world_size):
        try:
            file = SafetensorsFile(folder / f"rank{rank}.safetensors")
        except UsageError as error:
            problems.append(error)
            continue
        plan = _expected(file, config, rank)
        problems += _problems(file, plan)
        ranks.append((file, plan))
    return problems or _scale_problems(ranks)


def _expected(file: SafetensorsFile, config: CheckpointConfig, rank: int) -> list[Target]:
    plan = rank_plan(config, rank)
    return [target for target in plan if not _may_lack(target.name, file, config)]


def _problems(file: SafetensorsFile, plan: Sequence[Target]) -> list[UsageError]:
    shapes = {target.name: target.shape for target in plan}
    fp8 = {target.name for target in plan if target.dtype == FP8}
    return tensor_problems(str(file.path), file.entries, shapes, _REMAKE, fp8)


def _scale_problems(ranks: Iterable[_Rank]) -> list[UsageError]:
    """FP8 scales that are no positive number, or that differ where ranks share a tensor."""
    problems: list[UsageError] = []
    known: dict[str | None, float] = {}
    for file, plan in ranks:
        for target in plan:
            if not target.name.endswith("_scaling_factor"):
                continue
            value = file.read(target.name, 0, 1).item()
            first = known.setdefault(target.blocks[0].source, value)
            if not 0.0 < value < math.inf:
                problem = f"{file.path}: tensor {target.name} is {value}, a scale is above 0"
                problems.append(UsageError(problem, _REMAKE))
            elif value != first:
                problem = f"{file.path}: tensor {target.name} is {value}, on other ranks {first}"
                problems.append(UsageError(problem, _REMAKE))
    return problems


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. `read` gives Hugging Face tensors, `full_tensor` those of one rank."""

    path: Path
    config: CheckpointConfig
    files: RankFiles

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Check config.json and every rank file's header; no weights are read.

        Raises:
            UsageError: no checkpoint, a model trtla does not support, or broken rank files.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", "give the --output-dir of trtla convert")
        config = validate(
            CheckpointConfig, read_json(folder / "config.json"), str(folder / "config.json")
        )
        check_supported(config, str(folder / "config.json"))
        check_mapping(config)
        return cls(folder, config, RankFiles(folder, config))

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the one-rank checkpoint of this model."""
        return tuple(target.name for target in rank_plan(single_rank(self.config), 0))

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a Hugging Face named tensor, whatever the split."""
        return self.files.read(name, start, stop)

    def full_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the one-rank checkpoint (fused qkv, no padding, global layer numbers).

        Raises:
            KeyError: no such tensor.
        """
        plan = {target.name: target for target in rank_plan(single_rank(self.config), 0)}
        return materialize(plan[name], self.files)

    def full_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors of the one-rank checkpoint, one by one."""
        return full_tensors(self.files, self.config)


CHUNK_BYTES = 2 * 2**20  # small enough to stay in the processor's cache between read and write
"""How much of a tensor is in memory at a time while streaming."""

_FLOAT16_OVERFLOW = 65520.0  # the smallest number that rounds to infinity


class TensorSource(Protocol):
    """Reads rows of the tensors that `plan.source_shapes` lists."""

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop), or elements of a vector, as stored, in memory of their own.

        What the checkpoint holds in FP8 comes in FP8: only a source knows how to quantise.
        """


def torch_dtype(name: str) -> torch.dtype:
    """A checkpoint's float16, bfloat16, float32 or float8_e4m3fn as torch's dtype."""
    return {
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "float32": torch.float32,
        FP8: torch.float8_e4m3fn,
    }[name]


def stream(target: Target, source: TensorSource) -> Iterator[torch.Tensor]:
    """The target's rows from top to bottom, in contiguous pieces of about CHUNK_BYTES.

    Raises:
        UsageError: a value is too large for float16.
    """
    for block in target.blocks:
        for start, stop in row_spans(block.rows, block.cols[1] if block.cols else 1):
            yield _read(block, start, stop, source, torch_dtype(target.dtype))


def materialize(target: Target, source: TensorSource) -> torch.Tensor:
    """The whole target as one tensor."""
    out, row = torch.empty(target.shape, dtype=torch_dtype(target.dtype)), 0
    for piece in stream(target, source):
        if piece.shape == target.shape:
            return piece  # small tensors come in one piece, nothing to put together
        out[row : row + len(piece)] = piece
        row += len(piece)
    return out


def full_tensors(
    source: TensorSource, config: CheckpointConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the one-rank checkpoint of this model, one by one."""
    for target in rank_plan(single_rank(config), 0):
        yield target.name, materialize(target, source)


def row_spans(rows: Span, width: int) -> Iterator[Span]:
    """Stretches of rows whose whole width takes about CHUNK_BYTES in float32."""
    first, last = rows
    step = max(1, CHUNK_BYTES // (4 * width))
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _read(
    block: Block, start: int, stop: int, source: TensorSource, dtype: torch.dtype
) -> torch.Tensor:
    if block.source is None:
        width = (block.cols[1] - block.cols[0],) if block.cols else ()
        return torch.zeros((stop - start, *width), dtype=dtype)
    rows = source.read(block.source, start, stop)
    part = rows[:, slice(*block.cols)] if block.cols else rows
    return _cast(part, dtype, block.source).contiguous()


def _cast(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    if dtype == torch.float16:
        _check_float16(tensor, name)
    return tensor.to(dtype)


def _check_float16(tensor: torch.Tensor, name: str) -> None:
    low, high = tensor.aminmax()
    largest = max(-low.item(), high.item())
    if largest >= _FLOAT16_OVERFLOW:
        raise UsageError(
            f"tensor {name} holds {largest:.4g}, too large for float16",
            "convert with --dtype bfloat16 or --dtype float32",
        )
