"""Any model shape and any legal split: what is written over ranks reads back as it was."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.models import configs
from tests.support.tensors import equal
from trtla.formats import tensors as source_module
from trtla.formats.checkpoint import Checkpoint, weight_bytes, write_ranks
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import rank_plan
from trtla.formats.shapes import hf_shapes


class DictSource:
    """Tensors in memory, every element another number."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.tensors, first = {}, 1
        for name, shape in hf_shapes(config).items():
            count = torch.Size(shape).numel()
            self.tensors[name] = torch.arange(first, first + count).float().view(shape)
            first += count

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.tensors[name][start:stop].numpy()


@examples(60)
@given(config=configs(), chunk=st.sampled_from([8, 64, 2**20]), row=st.integers(0, 19))
def test_split_then_reassemble_is_the_identity(
    config: CheckpointConfig, chunk: int, row: int
) -> None:
    source = DictSource(config)
    old, source_module.CHUNK_BYTES = source_module.CHUNK_BYTES, chunk
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_ranks(Path(folder), config, source)
            files = Checkpoint(Path(folder), config)
            for name, tensor in source.tensors.items():
                assert equal(files.read(name, 0, len(tensor)), tensor)
                start = min(row, len(tensor) - 1)  # rows in the middle as well
                assert equal(files.read(name, start, len(tensor)), tensor[start:])
    finally:
        source_module.CHUNK_BYTES = old


@examples(60)
@given(config=configs())
def test_every_rank_has_equal_shapes_within_a_stage_and_all_bytes_are_counted(
    config: CheckpointConfig,
) -> None:
    tp, total = config.mapping.tp_size, 0
    for rank in range(config.mapping.world_size):
        plan = rank_plan(config, rank)
        first = rank_plan(config, rank // tp * tp)
        assert [(t.name, t.shape) for t in plan] == [(t.name, t.shape) for t in first]
        assert all(sum(b.height for b in t.blocks) == t.shape[0] for t in plan)
        total += sum(4 * prod(t.shape) for t in plan)
    assert total == weight_bytes(config)
