"""A TensorRT-LLM checkpoint folder: config.json and rank files, checked and read lazily.

A checkpoint of any tp and pp reads as the model before the split: fused q, k and v come apart,
copies of K/V heads and vocabulary padding vanish, layers have their global numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from trtla.errors import UsageError
from trtla.files import read_json, validate
from trtla.formats.config import DTYPES, FP8, CheckpointConfig
from trtla.formats.plan import (
    EMBEDDING,
    LM_HEAD,
    Block,
    Target,
    rank_plan,
    source_shapes,
    untied,
)
from trtla.formats.support import check_mapping, check_supported
from trtla.formats.tensors import E4M3, Weight, equal_ends, full_tensors
from trtla.formats.weight_files import SafetensorsFile, raise_first, tensor_problems

_REMAKE = "make it again with trtla convert"
_Rank = tuple[SafetensorsFile, Sequence[Target]]
"""A rank's file and what it holds."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where a block of a Hugging Face tensor lies: file, tensor, first row in that tensor."""

    file: SafetensorsFile
    name: str
    row: int
    block: Block
    fp8: bool

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of the Hugging Face tensor, in the columns of the block."""
        offset = self.row - self.block.rows[0]
        rows = self.file.read(self.name, start + offset, stop + offset)
        return rows.view(E4M3) if self.fp8 else rows


class Checkpoint:
    """The rank files of a checkpoint or torch engine, a source of Hugging Face named tensors.

    Args:
        folder: holds the files.
        config: its config.json, which trtla supports.
    """

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
        """As in config.json, but not tied where the stored lm_head differs from the embedding."""
        stored, same = self._stored, self._where[LM_HEAD] is self._where[EMBEDDING]
        if not stored.tie_word_embeddings or same or equal_ends(self, stored.vocab_size):
            return stored
        return untied(stored)

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Check config.json and every rank file's header; no weights are read."""
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", "give the --output-dir of trtla convert")
        config = read_checkpoint_config(folder)
        check_config(folder, config)
        return cls(folder, config)

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a Hugging Face tensor, put together from the ranks."""
        width = self._shapes[name][1:]
        places = [at for at in self._where[name] if _overlaps(at.block.rows, (start, stop))]
        if len(places) == 1 and places[0].block.cols in (None, (0, *width)):
            return places[0].read(start, stop)
        spans = [(max(start, at.block.rows[0]), min(stop, at.block.rows[1])) for at in places]
        parts = [at.read(*span) for at, span in zip(places, spans, strict=True)]
        out = torch.empty((stop - start, *width), dtype=parts[0].dtype)
        for at, (first, last), part in zip(places, spans, parts, strict=True):
            view = out[first - start : last - start]
            (view[:, slice(*at.block.cols)] if at.block.cols else view).copy_(part)
        return out

    def full_tensors(self) -> Iterator[tuple[str, Weight]]:
        return full_tensors(self, self.config)

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
    """Raise `UsageError` where one stored tensor would be of two types."""
    embedding, head = (config.block_types.get(name, config.dtype) for name in (EMBEDDING, LM_HEAD))
    if embedding != head:
        raise UsageError(
            f"{folder / 'config.json'}: {LM_HEAD} is {head}, but the files hold only the "
            f"embedding, which is {embedding}",
            _REMAKE,
        )


def _overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def read_checkpoint_config(folder: Path) -> CheckpointConfig:
    """A checkpoint's config.json; raises `UsageError` where it is missing or broken."""
    path = folder / "config.json"
    return validate(CheckpointConfig, read_json(path), str(path))


def check_config(folder: Path, config: CheckpointConfig) -> None:
    """Refuse a folder's model that trtla cannot run, or whose split is impossible."""
    check_supported(config, str(folder / "config.json"))
    check_mapping(config)


def rank_problems(folder: Path, config: CheckpointConfig) -> list[UsageError]:
    """Everything wrong with the rank files of a folder whose config.json is sound."""
    return _open_ranks(folder, config)[1]


def _open_ranks(folder: Path, config: CheckpointConfig) -> tuple[list[_Rank], list[UsageError]]:
    """The files that can be opened, and everything that is wrong."""
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
    return ranks, problems or _scale_problems(ranks)


def _may_lack(name: str, file: SafetensorsFile, config: CheckpointConfig) -> bool:
    """TensorRT-LLM takes the embedding for a tied lm_head that is not in the file."""
    tied = config.tie_word_embeddings and config.mapping.pp_size == 1
    whole = config.mapping.tp_size == 1 or not config.use_parallel_embedding
    return name == LM_HEAD and name not in file.entries and tied and whole


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
