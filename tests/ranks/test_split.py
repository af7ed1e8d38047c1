"""What each rank holds: together exactly the model, as convert splits it, blocks included."""

from __future__ import annotations

import pytest
import torch

from tests.support.gguf_models import write_gguf
from tests.support.models import VARIANTS, Variant, make_model, save_model
from tests.support.ranks import WIDE
from trtla.errors import UsageError
from trtla.formats.blocks import BlockTensor
from trtla.formats.model import Model
from trtla.formats.support import shard_config, split_config
from trtla.formats.torch_tensors import as_tensor

BY_INPUTS = ("attention.dense.weight", "mlp.proj.weight")
WHOLE = ("layernorm.weight", "ln_f.weight", "vocab_embedding.weight")


def numbers(weight):
    return as_tensor(weight.dequantize()) if isinstance(weight, BlockTensor) else weight


def weights(engine, rank=0, size=1):
    """By name; what is not in blocks as tensors."""
    found = engine.weights(rank, size)
    return {n: w if isinstance(w, BlockTensor) else as_tensor(w) for n, w in found}


def opened(variant, folder, seed=0):
    save_model(make_model(variant, seed), variant, folder)
    return Model.at(folder).open(None)


def joined(name, parts):
    """A tensor of the whole model, from those of the ranks."""
    parts = [numbers(part) for part in parts]
    if name.endswith(WHOLE):
        assert all(torch.equal(part, parts[0]) for part in parts)
        return parts[0]
    return torch.cat(parts, dim=1 if name.endswith(BY_INPUTS) else 0)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: one.name)
def test_the_parts_of_all_ranks_are_the_model(variant, tmp_path):
    engine = opened(variant, tmp_path)
    whole, ranks = weights(engine), [weights(engine, rank, 2) for rank in range(2)]
    config = engine.config.pretrained_config
    assert set(ranks[0]) == set(whole) | {"lm_head.weight"}
    for name, parts in ((name, [rank.get(name) for rank in ranks]) for name in ranks[0]):
        if name.endswith(("attention.dense.bias", "mlp.proj.bias")):
            assert torch.equal(parts[0], whole[name])  # a sum has it once
            assert parts[1] is None
        elif name == "lm_head.weight":
            head = joined(name, parts)
            assert torch.equal(
                head[: config.vocab_size],
                whole.get(name, whole["transformer.vocab_embedding.weight"]),
            )
            assert not head[config.vocab_size :].any()
        elif ".qkv." not in name:
            assert torch.equal(joined(name, parts), whole[name])


@pytest.mark.parametrize("tp_size", [2, 4])
def test_a_rank_has_its_query_heads_and_the_key_heads_that_they_read(tp_size, tmp_path):
    engine = opened(Variant("gqa"), tmp_path)
    config = engine.config.pretrained_config
    shard = shard_config(config, tp_size)
    size, kv = config.head_size, shard.num_key_value_heads
    name = "transformer.layers.1.attention.qkv.weight"
    q, k, _ = weights(engine)[name].split([4 * size, 2 * size, 2 * size])
    for rank in range(tp_size):
        own = weights(engine, rank, tp_size)[name]
        queries = own[: shard.num_attention_heads * size]
        keys = own[len(queries) : len(queries) + kv * size]
        first = rank * shard.num_attention_heads
        assert torch.equal(queries, q[first * size :][: len(queries)])
        assert torch.equal(keys, k[first // 2 * size :][: len(keys)])  # two queries share a key


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_weights_in_blocks_are_split_between_blocks(kind, tmp_path):
    path = write_gguf(make_model(WIDE), tmp_path / "model.gguf", kind)
    engine = Model.at(path).open(None)
    whole, ranks = weights(engine), [weights(engine, rank, 2) for rank in range(2)]
    assert all(numbers(rank["lm_head.weight"]).shape == (51, 128) for rank in ranks)  # of 101
    for name, weight in whole.items():
        found = joined(name, [rank[name] for rank in ranks])
        assert torch.equal(found[: len(numbers(weight))], numbers(weight))
        assert not found[len(numbers(weight)) :].any()
        if name.endswith(BY_INPUTS):
            assert isinstance(ranks[0][name], BlockTensor)


@pytest.mark.parametrize(
    ("tp_size", "said"),
    [
        (3, "tp_size 3 does not divide num_attention_heads 4"),
        (4, "tp_size 4 leaves a rank 24 inputs of model.layers.0.self_attn.o_proj.weight, and a "
            "block of Q8_0 has 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_said(tp_size, said, tmp_path):
    odd = Variant("odd", {"hidden_size": 96, "intermediate_size": 256, "head_dim": 24})
    engine = Model.at(write_gguf(make_model(odd), tmp_path / "model.gguf", "Q8_0")).open(None)
    with pytest.raises(UsageError) as error:
        split_config(engine.config.pretrained_config, tp_size)
    assert error.value.message == said
    assert "--dtype" not in error.value.hint or "convert with --dtype" in error.value.hint
