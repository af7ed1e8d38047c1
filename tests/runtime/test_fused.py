"""The fused Triton kernels, interpreted, against PyTorch's operations; whole models with them.

Without Triton everything here is skipped. bfloat16 is for GPUs only (`test_fused_compiled`): the
interpreter rounds to it wrongly.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.runtime.test_fp8 import load_model, needs_products
from tests.runtime.test_step_inputs import filled_cache, llama
from tests.support.paged import CPU, NUM_BLOCKS, sequence_of, tree_feed, trees
from trtla.formats.config import Quantization
from trtla.formats.tensors import E4M3, quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.cuda import fused_kernels
from trtla.runtime.models.cuda.fused import FusedOperations, fused_problem
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.kv_cache import Fp8KVCache, KVCache
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.sequence import Feed

CUDA = torch.device("cuda")
FUSED, PLAIN = FusedOperations(), PlainOperations()
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
interpreted = pytest.mark.skipif(
    not type(fused_kernels.add_norm).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
dtypes = st.sampled_from((torch.float32, torch.float16))
tokens = st.integers(1, 3)
flags = st.booleans()


def random(*shape, dtype, device=CPU):
    noise = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=noise).to(device, dtype)


def near(found, wanted):
    """Equal but for one rounding of the type."""
    error = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, wanted, rtol=error, atol=error)


def assert_equal(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def same_bytes(found, wanted):
    assert found.dtype == wanted.dtype == E4M3
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


def check_norm(count, size, dtype, added, device=CPU):
    states, delta = random(count, size, dtype=dtype, device=device), None
    if added:
        delta = states.flip(0) * 3
    weight = random(size, dtype=dtype, device=device)
    before, scale = states.clone(), torch.tensor([0.013], device=device)
    total, normed = FUSED.add_norm(states, delta, weight, 1e-5)
    wanted = PLAIN.add_norm(states, delta, weight, 1e-5)
    assert torch.equal(total, wanted[0])
    near(normed, wanted[1])
    assert torch.equal(FUSED.add_norm(total, None, weight, 1e-5)[1], normed)  # of the rounded sum
    again, rounded = FUSED.add_norm(states, delta, weight, 1e-5, scale)
    assert torch.equal(again, total)
    same_bytes(rounded, quantize(normed, scale))
    assert torch.equal(states, before)  # a tapped layer's output stays what it was


def check_silu(count, size, dtype, stacked, device=CPU):
    both = random(count, 2 * size, dtype=dtype, device=device) * 8
    gate, up = both.chunk(2, dim=-1)
    if not stacked:
        gate, up = gate.contiguous(), up.contiguous()
    found, scale = FUSED.silu_mul(gate, up), torch.tensor([0.05], device=device)
    torch.testing.assert_close(
        found, PLAIN.silu_mul(gate, up), rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    same_bytes(FUSED.silu_mul(gate, up, scale), quantize(found, scale))
    same_bytes(FUSED.rounded(found, scale), quantize(found, scale))
    assert FUSED.rounded(found, None) is found


def check_rotation(count, kv_heads, group_size, size, dtype, device=CPU):
    shape, scales = (2, kv_heads, size, 2), [0.01, 0.013]
    plain, fused = (KVCache(*shape, dtype, device) for _ in range(2))
    rounded = Fp8KVCache(*shape, scales, device)
    for cache in (plain, fused, rounded):
        cache.data.zero_()
    qkv = random(count, (group_size + 2) * kv_heads * size, dtype=dtype, device=device) * 2
    angles = random(count, 1, size // 2, dtype=torch.float32, device=device) * 9
    rotary = angles.cos().to(dtype), angles.sin().to(dtype)
    noise = torch.Generator().manual_seed(count)
    slots = torch.randperm(2 * TOKENS_PER_BLOCK, generator=noise)[:count].to(device)
    wanted = PLAIN.rotate_write(qkv, rotary, slots, plain, 1)
    # Products of half types are exact in float32: only the rounding of the first shows.
    alike = near if dtype == torch.float32 else assert_equal
    alike(FUSED.rotate_write(qkv, rotary, slots, fused, 1), wanted)
    alike(fused.data[:, 0], plain.data[:, 0])
    assert torch.equal(fused.data[:, 1], plain.data[:, 1])  # values are not rotated
    FUSED.rotate_write(qkv, rotary, slots, rounded, 1)
    expected = quantize(fused.data[1], torch.tensor(scales[1], device=device))
    same_bytes(rounded.data[1].view(E4M3), expected)
    assert not rounded.data[0].any()


def check_rounding(scale, device=CPU):
    """Every float16, infinities too, becomes the byte of `quantize` in the cache."""
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    numbers = patterns.where(~patterns.isnan(), 0).view(8, -1).to(device)  # few, long heads
    size, slots = numbers.shape[1], torch.arange(8, device=device)
    cache = Fp8KVCache(1, 1, size, 1, [scale], device)
    qkv = torch.cat([torch.zeros_like(numbers), torch.zeros_like(numbers), numbers], 1)
    still = numbers.new_zeros(8, 1, size // 2)
    FUSED.rotate_write(qkv, (still, still), slots, cache, 0)
    same_bytes(cache.data[0, 1, :8, 0].view(E4M3), quantize(numbers, cache.scale(0)))


def check_moves(moves, dtype, kv_heads=2, size=24, device=CPU, padding=0):
    """Rows go where PyTorch's operations bring them, targets being sources too."""
    caches = [KVCache(2, kv_heads, size, 3, dtype, device) for _ in range(2)]
    noise = random(*caches[0].data.shape, dtype=torch.float32) * 50
    padded = [*moves, *[(95, 95)] * padding]
    slots = torch.tensor(padded, dtype=torch.int64).reshape(-1, 2).T.contiguous().to(device)
    for operations, cache in zip((FUSED, PLAIN), caches, strict=True):
        cache.data.copy_(noise.to(dtype))
        operations.move(cache, slots)
    assert torch.equal(caches[0].data, caches[1].data)
    for source, target in moves:
        assert torch.equal(caches[0].data[:, :, target], noise[:, :, source].to(device, dtype))


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


@st.composite
def small_steps(draw):
    """Feeds of a step of few tokens: the interpreter takes milliseconds for each."""
    blocks, feeds = draw(st.permutations(range(NUM_BLOCKS))), []
    if draw(flags):
        cached, length = draw(st.sampled_from((0, 35))), draw(st.integers(1, 6))
        sequence = sequence_of(cached, length, blocks, range(cached + length), ())
        feeds.append(Feed.prompt(sequence, length, draw(flags)))
    for _ in range(draw(st.integers(1, 2))):
        cached, parents = draw(st.integers(1, 60)), draw(trees(longest=6))
        feeds.append(tree_feed(sequence_of(cached, len(parents) + 1, blocks), parents, cached))
    return feeds


@contextmanager
def fused_model(model, taps=()):
    """The model with fused kernels."""
    model.fused, model.taps = True, taps
    try:
        yield model
    finally:
        model.fused, model.taps = False, ()


@interpreted
@examples(12)
@given(small_steps())
def test_a_fused_model_gives_the_plain_ones_logits(feeds):
    model = llama()
    cache, other = filled_cache(model), filled_cache(model)
    wanted = model.forward(feeds, other).logits
    with fused_model(model):
        found = model.forward(feeds, cache).logits
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
    wanted, used = model.forward(feeds, other).logits, NUM_BLOCKS * TOKENS_PER_BLOCK
    room = dataclasses.replace(exact, tokens=exact.tokens + 2, rows=exact.rows + 1)
    batch = StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)  # padding goes to the last block
    with fused_model(model):
        found = model.forward_batch(batch, cache).logits[: len(wanted)]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    found, wanted = (data[:, :, :used] for data in (cache.data, other.data))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def prompt_feed(length):
    """A prompt in the first blocks, all of its logits wanted."""
    sequence = sequence_of(0, length, list(range(NUM_BLOCKS)), range(length), ())
    return [Feed(sequence, sequence.prompt, tuple(range(length)))]


@interpreted
def test_tapped_layers_are_the_plain_ones():
    model, feeds = llama(), prompt_feed(3)
    with fused_model(model, taps=(1, 0)):
        found = model.forward(feeds, filled_cache(model)).hidden
        model.fused = False
        wanted = model.forward(feeds, filled_cache(model)).hidden
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@interpreted
@pytest.mark.parametrize("products", [pytest.param(True, marks=needs_products), False])
def test_fp8_models_keep_their_logits(products):
    model, feeds = load_model(products, kv_cache=True), prompt_feed(4)
    wanted = model.forward(feeds, model.new_cache(NUM_BLOCKS))
    with fused_model(model):
        found = model.forward(feeds, model.new_cache(NUM_BLOCKS))
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
    assert fused_problem(config, torch.bfloat16, CUDA) is None
    assert "cpu" in fused_problem(config, torch.float32, CPU)
    assert "float64" in fused_problem(config, torch.float64, CUDA)
    assert "32768" in fused_problem(wide, torch.bfloat16, CUDA)
    assert "512" in fused_problem(long, torch.bfloat16, CUDA)
    with pytest.MonkeyPatch.context() as patch:
        for capability, problem in (((8, 6), True), ((8, 9), False), ((9, 0), False)):
            patch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
            assert (fused_problem(fp8, torch.float16, CUDA) is not None) == problem
