"""Any model shape and any legal split: what is written over ranks reads back as it was."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from trtla.formats import tensors as source_module
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import CheckpointConfig, Mapping
from trtla.formats.plan import hf_shapes, rank_plan
from trtla.formats.support import ARCHITECTURES
from trtla.formats.writer import weight_bytes, write_ranks


class DictSource:
    """Tensors in memory, every element another number."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.tensors, first = {}, 1
        for name, shape in hf_shapes(config).items():
            count = torch.Size(shape).numel()
            self.tensors[name] = torch.arange(first, first + count).float().view(shape)
            first += count

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        return self.tensors[name][start:stop]


@st.composite
def configs(draw: st.DrawFn) -> CheckpointConfig:
    tp = draw(st.sampled_from([1, 2, 3, 4]))
    pp = draw(st.integers(1, 3))
    kv = draw(st.sampled_from([n for n in range(1, 9) if n % tp == 0 or tp % n == 0]))
    groups = draw(st.sampled_from([g for g in range(1, 9) if (kv * g) % tp == 0]))
    keys: dict[str, Any] = {
        "architecture": draw(st.sampled_from(ARCHITECTURES)),
        "dtype": "float32",
        "vocab_size": draw(st.integers(1, 20)),
        "hidden_size": tp * draw(st.integers(1, 4)),
        "num_hidden_layers": pp * draw(st.integers(1, 2)),
        "num_attention_heads": kv * groups,
        "num_key_value_heads": kv,
        "head_size": 2 * draw(st.integers(1, 3)),
        "intermediate_size": tp * draw(st.integers(1, 5)),
        "max_position_embeddings": 64,
        "attn_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "use_parallel_embedding": draw(st.booleans()),
        "embedding_sharding_dim": draw(st.integers(0, 1)),
        "mapping": Mapping(world_size=tp * pp, gpus_per_node=8, tp_size=tp, pp_size=pp),
    }
    return CheckpointConfig(**keys)


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
                assert torch.equal(files.read(name, 0, len(tensor)), tensor)
                start = min(row, len(tensor) - 1)  # rows in the middle as well
                assert torch.equal(files.read(name, start, len(tensor)), tensor[start:])
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
