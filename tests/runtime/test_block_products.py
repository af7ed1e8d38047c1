"""Weights in blocks in the compiled forward: close to their numbers, alike alone and in a crowd."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.support.compiled import (
    CPU,
    NAMES,
    arrays,
    check_threads,
    filled,
    forward,
    native_of,
    needs_compiler,
    sized,
    text,
    weights_in,
)
from trtla.formats.blocks import BlockTensor
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed

pytestmark = needs_compiler
MIXED = {"q": "Q4_K", "k": "Q6_K", "v": "Q8_0", "mlp.fc": "Q4_1", "mlp.gate": "Q5_1"}


def mixed(name):
    return next(
        (kind for part, kind in MIXED.items() if part in name.split(".layers.")[-1]), "Q4_0"
    )


def by_layer(name):
    """The first layer and the embedding plain, the second layer and lm_head in blocks."""
    return None if "layers.0." in name or "embedding" in name else mixed(name)


@functools.lru_cache(maxsize=1)
def model_of(name, dtype):
    config = sized(attn_bias=name == "Q4_1")
    types = {"mixed": mixed, "by layer": by_layer}.get(name, lambda _: name)
    weights = list(weights_in(config, types))
    return native_of(config, weights, dtype), weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*NAMES, "mixed", "by layer"])
def test_it_computes_what_the_dequantised_weights_give(name, dtype):
    model, weights = model_of(name, dtype)
    plain = LlamaModel(model.config, arrays(weights), torch.float32, CPU)
    prompts = [text(1, 90), text(2, 5)]  # inputs for all threads, and a thread's own
    ours, theirs = (filled(one, prompts)[2] for one in (model, plain))
    # Inputs are rounded to 8 bits: about 0.4 % of a block's largest, and errors average out.
    assert (ours - theirs).abs().max() < 0.12 * theirs.std()
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.999


@pytest.mark.parametrize("name", [*NAMES, "mixed", "by layer"])
def test_a_token_has_the_same_bits_alone_in_chunks_and_among_drafts(name):
    model, _ = model_of(name, torch.bfloat16)
    prompt = text(1, 70)
    cache, running, whole = filled(model, [prompt])
    for chunks in (2, 4, 7, 70):
        assert torch.equal(filled(model, [prompt], chunks)[2], whole)
    longest = text(5, 40)
    rows = {}
    for length in (1, 2, 5, 8, 9, 13, 17, 33, 41):
        draft = Draft(longest[: length - 1], tuple(range(length - 1))) if length > 1 else NO_DRAFT
        rows[length] = forward(model, cache, [Feed.step(running[0], draft)]).clone()
    for length, found in rows.items():
        assert torch.equal(found, rows[41][:length]), length


def test_threads_do_not_change_a_bit():
    check_threads(model_of("mixed", torch.bfloat16)[0])


@pytest.mark.parametrize("name", NAMES)
def test_weights_take_little_more_memory_than_their_blocks(name):
    config = sized(vocab_size=96)  # whole panels
    weights = list(weights_in(config, lambda _: name))
    stored = sum(
        weight.rows.nbytes if isinstance(weight, BlockTensor) else 4 * weight.numel()
        for name, weight in weights
        if "embedding" not in name
    )
    # Factors of 6 bits take a byte, and the scale of a large block stands beside each 32 inputs.
    most = 1.13 if "_G" in name else 1.04
    assert stored <= native_of(config, weights, torch.float32).weight_bytes <= most * stored


def test_infinite_and_broken_scales_are_no_answer():
    config = sized()
    weights = dict(weights_in(config, lambda _: "Q8_0"))
    broken = weights["transformer.layers.1.mlp.proj.weight"].rows
    broken.reshape(-1, 34)[5, :2] = (0, 126)  # NaN
    model = native_of(config, weights.items(), torch.float32)
    logits = filled(model, [text(1, 9)])[2]
    assert not torch.isfinite(logits).all()
    assert model.row_sampler.most_probable(logits.numpy(), 0) == -1
