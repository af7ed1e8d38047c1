"""The fused Triton kernels against the operations that they replace."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from hypothesis import strategies as st

from tests.support.paged import CPU, NUM_BLOCKS, sequence_of, tree_feed, trees
from trtla.formats.torch_tensors import E4M3, quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed

CUDA = torch.device("cuda")
FUSED, PLAIN = FusedOperations(), PlainOperations()
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
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
    plain, fused = (TensorCache(*shape, dtype, device) for _ in range(2))
    rounded = TensorCache(*shape, dtype, device, scales)
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
    cache = TensorCache(1, 1, size, 1, numbers.dtype, device, [scale])
    qkv = torch.cat([torch.zeros_like(numbers), torch.zeros_like(numbers), numbers], 1)
    still = numbers.new_zeros(8, 1, size // 2)
    FUSED.rotate_write(qkv, (still, still), slots, cache, 0)
    same_bytes(cache.data[0, 1, :8, 0].view(E4M3), quantize(numbers, cache.scale(0)))


def check_moves(moves, dtype, kv_heads=2, size=24, device=CPU, padding=0):
    """Rows go where PyTorch's operations bring them, targets being sources too."""
    caches = [TensorCache(2, kv_heads, size, 3, dtype, device) for _ in range(2)]
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
    model.operations, model.taps = FUSED, taps
    try:
        yield model
    finally:
        model.operations, model.taps = PLAIN, ()
