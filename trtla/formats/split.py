"""How the torch executor splits a model over ranks of tensor parallelism: as checkpoints are split.

Each rank has its attention heads, its part of the intermediate size and of lm_head, and the whole
embedding.
"""

from __future__ import annotations

from trtla.errors import UsageError
from trtla.formats.config import BLOCK_SIZES, CheckpointConfig, Mapping
from trtla.formats.plan import hf_shapes, single_rank
from trtla.formats.support import check_tp_size

_SPLIT_BY_INPUTS = ("o_proj.weight", "down_proj.weight")


def split_config(config: CheckpointConfig, tp_size: int) -> CheckpointConfig:
    """The same model on this many ranks."""
    mapping = Mapping(world_size=tp_size, tp_size=tp_size)
    split = single_rank(config).model_copy(update={"mapping": mapping})
    check_tp_size(split)
    shapes = hf_shapes(config)
    for name, kind in config.block_types.items():
        each, inputs = shapes[name][-1] // tp_size, BLOCK_SIZES[kind][0]
        if name.endswith(_SPLIT_BY_INPUTS) and each % inputs:
            raise UsageError(
                f"tp_size {tp_size} leaves a rank {each} inputs of {name}, and a block of {kind} "
                f"has {inputs}",
                "use a smaller --tp-size, or convert with --dtype bfloat16 or float16",
            )
    return split


def shard_config(config: CheckpointConfig, tp_size: int) -> CheckpointConfig:
    """What one rank computes, as a model of its own; its vocabulary stays whole."""
    sizes = {
        "num_attention_heads": config.num_attention_heads // tp_size,
        "num_key_value_heads": max(1, config.num_key_value_heads // tp_size),
        "intermediate_size": config.intermediate_size // tp_size,
    }
    return single_rank(config).model_copy(update=sizes)
