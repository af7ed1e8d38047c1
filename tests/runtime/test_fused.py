"""The fused Triton kernels, interpreted, against PyTorch's operations; whole models with them.

Without Triton everything here is skipped. bfloat16 is for GPUs only (`test_fused_compiled`): the
interpreter rounds to it wrongly.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.support.fused import (
    CUDA,
    check_moves,
    check_norm,
    check_rotation,
    check_rounding,
    check_silu,
    flags,
    fused_model,
    small_steps,
)
from tests.support.paged import CPU, NUM_BLOCKS, filled_cache, llama, sequence_of
from tests.support.real_models import load_model, needs_products
from tests.support.unchanged import CUDA_SOURCES
from trtla.formats.config import Quantization
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.cuda import fused
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import kernels_problem
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.sequence import Feed

pytestmark = [
    pytest.mark.deep,
    CUDA_SOURCES,
]

interpreted = pytest.mark.skipif(
    not type(fused.add_norm).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
dtypes = st.sampled_from((torch.float32, torch.float16))
tokens = st.integers(1, 3)


@st.composite
def accepted_moves(draw):
    """Of accepted drafts: to the slots behind the input token's, from further ones, rising."""
    first = draw(st.integers(0, 60))
    nodes = draw(st.sets(st.integers(1, 30), max_size=9).map(sorted))
    return [(first + node, first + place) for place, node in enumerate(nodes, 1)]


@interpreted
@examples(40)
@given(accepted_moves(), st.integers(1, 5), st.sampled_from((torch.float32, torch.uint8)))
def test_rows_move_as_torch_moves_them(moves, padding, dtype):
    check_moves(moves, dtype, padding=padding)


@interpreted
def test_many_rows_of_long_heads_move():
    check_moves([(2 * i + 1, i) for i in range(40)], torch.float16, 3, 128)


@interpreted
@examples(40)
@given(tokens, st.integers(1, 300), dtypes, flags)
def test_sum_and_norm_equal_torchs(count, size, dtype, added):
    check_norm(count, size, dtype, added)


@interpreted
@examples(40)
@given(tokens, st.integers(1, 2100), dtypes, flags)
def test_activated_products_equal_torchs(count, size, dtype, stacked):
    check_silu(count, size, dtype, stacked)


@interpreted
@examples(40)
@given(tokens, st.integers(1, 2), st.integers(1, 5), st.integers(8, 64), dtypes)
def test_queries_and_the_cache_equal_torchs(count, kv_heads, group_size, half, dtype):
    check_rotation(count, kv_heads, group_size, 2 * half, dtype)


@interpreted
@pytest.mark.parametrize("scale", [1.0, 0.013])
def test_every_number_is_rounded_to_fp8_as_torch_rounds_it(scale):
    check_rounding(scale)


# The whole model.


@interpreted
@examples(12)
@given(small_steps())
def test_a_fused_model_gives_the_plain_ones_logits(feeds):
    model = llama()
    cache, other = filled_cache(model), filled_cache(model)
    wanted = model.run(feeds, other).logits
    with fused_model(model):
        found = model.run(feeds, cache).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
    torch.testing.assert_close(cache.data, other.data, rtol=1e-5, atol=1e-5)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows of no sequence hold anything
@examples(8)
@given(small_steps())
def test_fused_kernels_run_on_pages_with_padding_tokens(feeds):
    model, exact = llama(), Room.of(feeds)
    cache, other = filled_cache(model), filled_cache(model)
    wanted, used = model.run(feeds, other).logits, NUM_BLOCKS * TOKENS_PER_BLOCK
    room = dataclasses.replace(exact, tokens=exact.tokens + 2, rows=exact.rows + 1)
    batch = StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)  # padding goes to the last block
    with fused_model(model):
        found = model.forward_batch(batch, cache).logits[: len(wanted)]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    found, wanted = (data[:, :, :used] for data in (cache.data, other.data))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@examples(8)
@given(small_steps(), st.data())
def test_a_token_that_overflows_reaches_only_who_sees_it(feeds, data):
    model = llama()
    ill = data.draw(st.sampled_from([token for feed in feeds for token in feed.tokens]))
    cache, other = filled_cache(model), filled_cache(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_embedding", model._embedding.clone())
        model._embedding[ill] = float("inf")
        expected = model.run(feeds, other).logits
        with fused_model(model):
            batch = StepInputs(Room.of(feeds), NUM_BLOCKS, CPU).fill(feeds)
            found = model.forward_batch(batch, cache).logits
    assert torch.equal(found.isfinite(), expected.isfinite())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def prompt_feed(length):
    """A prompt in the first blocks, all of its logits wanted."""
    sequence = sequence_of(0, length, list(range(NUM_BLOCKS)), range(length), ())
    return [Feed(sequence, sequence.prompt, tuple(range(length)))]


@interpreted
def test_tapped_layers_are_the_plain_ones():
    model, feeds = llama(), prompt_feed(3)
    feeds[0].sequence.drafter.wants_states = True
    with fused_model(model, taps=(1, 0)):
        found = model.run(feeds, filled_cache(model)).hidden
        model.operations = PlainOperations()
        wanted = model.run(feeds, filled_cache(model)).hidden
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@interpreted
@pytest.mark.parametrize("products", [pytest.param(True, marks=needs_products), False])
def test_fp8_models_keep_their_logits(products):
    model, feeds = load_model(products, kv_cache=True), prompt_feed(4)
    wanted = model.run(feeds, model.new_cache(NUM_BLOCKS))
    with fused_model(model):
        found = model.run(feeds, model.new_cache(NUM_BLOCKS))
    difference = (found.logits - wanted.logits).abs()
    # A number at the border of two FP8 numbers may fall to either side.
    assert difference.max() < 0.05
    assert difference.median() < 1e-4


# Where they run.


def test_what_keeps_the_kernels_from_running():
    config = llama().config
    fp8 = config.model_copy(update={"quantization": Quantization(kv_cache_quant_algo="FP8")})
    wide = config.model_copy(update={"hidden_size": 32768})
    long = config.model_copy(update={"head_size": 512})
    assert kernels_problem(config, torch.bfloat16, CUDA) is None
    assert "cpu" in kernels_problem(config, torch.float32, CPU)
    assert "float64" in kernels_problem(config, torch.float64, CUDA)
    assert "32768" in kernels_problem(wide, torch.bfloat16, CUDA)
    assert "512" in kernels_problem(long, torch.bfloat16, CUDA)
    with pytest.MonkeyPatch.context() as patch:
        for capability, problem in (((8, 6), True), ((8, 9), False), ((9, 0), False)):
            patch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
            assert (kernels_problem(fp8, torch.float16, CUDA) is not None) == problem
