"""The Triton kernels against trtla's own attention: interpreted on a CPU, compiled on a GPU.

Without Triton everything here is skipped. bfloat16 is for GPUs only: Triton's interpreter
multiplies its bit patterns.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.support.paged import (
    CPU,
    NUM_BLOCKS,
    attend_packed,
    compiled_in_a_process,
    empty_cache,
    fake_capture,
    filled_cache,
    llama,
    paged_reference,
    sequence_of,
    steps,
    tree_feed,
    wide_room,
)
from tests.support.unchanged import CUDA_SOURCES
from trtla.formats.config import Quantization
from trtla.formats.torch_tensors import quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.cuda import kernels
from trtla.runtime.models.cuda.graphs import CudaCapture, GraphRunner
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import kernels_problem, paged_attend
from trtla.runtime.models.tensor_cache import TensorCache

pytestmark = [
    pytest.mark.deep,
    CUDA_SOURCES,
]

CUDA = torch.device("cuda")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
interpreted = pytest.mark.skipif(
    not type(kernels.attend_pages).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
sizes = st.sampled_from((16, 32, 64, 128))
group_size = st.integers(1, 4)
small_steps = steps(prompts=1, generating=2)
split_counts = st.sampled_from((1, 2, 4))


def check(feeds, cache, group_size, dtype, splits, room=None, window=None):
    """Paged attention of all of a step's groups equals the packed one."""
    windows = [] if window is None else [window]
    device, (kv_heads, size) = cache.data.device, cache.data.shape[-2:]
    expected_batch = make_batch(feeds, cache, group_size, dtype, [window])
    batch = StepInputs(room or Room.of(feeds), NUM_BLOCKS, device, windows).fill(feeds)
    shape = (len(batch.tokens), group_size * kv_heads + 2, size)  # rows with keys and values behind
    heads = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    queries, (keys, values), scale = heads[:, :-2], cache.layer(0), cache.scale(0)
    used = len(expected_batch.tokens)
    groups = expected_batch.seen_in(window)
    expected = attend_packed(queries[:used], keys, values, groups, scale)
    got = torch.cat(
        [
            paged_attend(queries[g.rows], keys, values, g, scale, splits)
            for g in batch.seen_in(window)
        ]
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got[:used], expected, rtol=tolerance, atol=tolerance)


@interpreted
@examples(12)
@given(small_steps, st.integers(1, 2), group_size, sizes, split_counts, st.booleans())
def test_trees_and_prompts_equal_packed_attention(
    feeds, kv_heads, group_size, size, splits, padded
):
    cache = empty_cache(kv_heads, size)
    room = wide_room(feeds) if padded else None
    check(feeds, cache, group_size, torch.float32, splits, room)


@interpreted
@examples(12)
@given(small_steps, group_size, split_counts, st.sampled_from((1, 5, 32, 90)), st.booleans())
def test_what_a_window_hides_is_not_seen(feeds, group_size, splits, window, padded):
    room = wide_room(feeds) if padded else None
    check(feeds, empty_cache(2, 16), group_size, torch.float32, splits, room, window)


@interpreted
@examples(4)
@given(small_steps, group_size, sizes, split_counts)
def test_half_precision_stays_within_its_rounding(feeds, group_size, size, splits):
    check(feeds, empty_cache(2, size, torch.float16), group_size, torch.float16, splits)


def fp8_cache(size, device=CPU):
    """A cache of random e4m3 numbers, with a scale that is not a power of 2."""
    cache = TensorCache(1, 2, size, NUM_BLOCKS, torch.float32, device, [0.013])
    numbers = torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0))
    cache.data.copy_(quantize(numbers.to(device), cache.scale(0)).view(torch.uint8))
    return cache


@interpreted
@examples(4)
@given(small_steps, group_size, sizes, split_counts)
def test_fp8_caches_are_scaled(feeds, group_size, size, splits):
    check(feeds, fp8_cache(size), group_size, torch.float32, splits)


@interpreted
@examples(12)
@given(st.integers(1, 300), st.sampled_from((2, 8, 16)))
def test_more_splits_than_context_change_nothing(cached, splits):
    feeds = [tree_feed(sequence_of(cached, 3, list(range(NUM_BLOCKS))), (0, 0))]
    check(feeds, empty_cache(), 2, torch.float32, splits)


@interpreted
def test_every_bit_of_a_word_is_seen():
    blocks = list(range(NUM_BLOCKS))
    feeds = [tree_feed(sequence_of(33, 130, blocks), tuple(range(129)))]
    check(feeds, empty_cache(), 4, torch.float32, 1)


@interpreted
@examples(6)
@given(steps(prompts=1, generating=2, most_cached=60))
def test_a_model_on_pages_gives_the_logits_of_the_packed_one(feeds):
    model = llama()
    cache, other = filled_cache(model), filled_cache(model)
    expected = model.run(feeds, other).logits
    runner = GraphRunner(model.forward_batch, cache, 4, (84, 90), 400, fake_capture)
    for _ in range(2):
        torch.testing.assert_close(runner(feeds).logits, expected, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, where Triton has NaN
@examples(12)
@given(small_steps, sizes, split_counts, st.data())
def test_keys_that_are_not_finite_reach_only_who_sees_them(feeds, size, splits, data):
    """As `rotate_write` leaves a token whose numbers overflow: its key NaN, its value zeros."""
    cache = empty_cache(2, size)
    batch = StepInputs(Room.of(feeds), NUM_BLOCKS, CPU).fill(feeds)
    row = data.draw(st.integers(0, len(batch.tokens) - 1))
    ill = batch.slots[row]
    keys, values = cache.layer(0)
    keys[ill, 1], values[ill, 1] = float("nan"), 0.0
    queries = torch.randn(len(batch.tokens), 4, size, generator=torch.Generator().manual_seed(1))
    for group in batch.groups:
        own = queries[group.rows]
        found = paged_attend(own, keys, values, group, None, splits).view(len(own), 4, size)
        wanted = paged_reference(own, keys, values, group).view(len(own), 4, size)
        assert torch.equal(found.isnan(), wanted.isnan())
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trtla.runtime.models.cuda import kernels

sizes = dict(KV_HEADS=8, GROUP_SIZE=4, HEAD_SIZE=128, PAGE=32, BLOCK_M={tile}, BLOCK_N=64)
modes = dict(SPLITS={splits}, CAUSAL={causal}, SCALED={scaled}, WINDOWED={windowed})
pointers = dict(queries="*{dtype}", keys="*{cache}", values="*{cache}", sequences="*i32")
pointers |= dict(masks="*i64", positions="*i64", scale="*fp32", out="*fp32", logs="*fp32")
pointers |= dict(factor="fp32")
names = ("rows", "query_stride", "slot_stride", "sequence_stride", "words", "window")
numbers = dict.fromkeys(names, "i32")
constants = sizes | modes
signature = pointers | numbers | dict.fromkeys(constants, "constexpr")
target = GPUTarget("cuda", {capability}, 32)
done = compile(ASTSource(kernels.attend_pages, signature, constants), target=target)
assert done.asm["cubin"] and done.metadata.shared <= 101376, done.metadata.shared
pointers = dict(parts="*fp32", logs="*fp32", out="*{dtype}", stride="i32")
constants = dict(HEAD_SIZE=128, SPLITS=16)
signature = pointers | dict.fromkeys(constants, "constexpr")
assert compile(ASTSource(kernels.combine, signature, constants), target=target).asm["cubin"]
"""


@pytest.mark.parametrize(
    ("capability", "mode"),
    [
        (80, ("bf16", "bf16", 128, 4, 0, 0, 1)),
        (90, ("fp16", "fp16", 16, 1, 1, 0, 1)),
        (90, ("bf16", "fp8e4nv", 64, 2, 0, 1, 0)),
    ],
    ids=["bfloat16", "float16-prompt", "fp8-cache"],
)
def test_kernels_compile_to_machine_code_without_a_gpu(capability, mode, tmp_path):
    names = ("dtype", "cache", "tile", "splits", "causal", "scaled", "windowed")
    code = COMPILE.format(**dict(zip(names, mode, strict=True)), capability=capability)
    compiled_in_a_process(code, tmp_path)


def on_cuda(cache):
    """The same cache on the GPU."""
    copy = empty_cache(*cache.data.shape[-2:], cache.data.dtype, device=CUDA)
    copy.data.copy_(cache.data)
    return copy


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
@examples(20)
@given(steps(), st.sampled_from((1, 3, 4)), st.sampled_from((64, 128)), st.booleans())
def test_compiled_kernels_equal_packed_attention(dtype, feeds, group_size, size, padded):
    cache = on_cuda(empty_cache(2, size, dtype))
    for splits in (1, 4, None):
        check(feeds, cache, group_size, dtype, splits, wide_room(feeds) if padded else None)


@pytest.mark.gpu
@examples(10)
@given(steps(), st.sampled_from((64, 128)))
@example([tree_feed(sequence_of(70, 84, list(range(40))), tuple(range(83)))], 128)
def test_compiled_kernels_read_fp8_caches(feeds, size):
    changed = {"quantization": Quantization(kv_cache_quant_algo="FP8"), "head_size": size}
    if kernels_problem(llama().config.model_copy(update=changed), torch.bfloat16, CUDA):
        pytest.skip("no FP8 on this GPU")
    check(feeds, fp8_cache(size, CUDA), 4, torch.bfloat16, None)


@pytest.mark.gpu
@examples(10)
@given(steps(prompts=0))
def test_a_captured_graph_gives_what_the_kernels_give(feeds):
    cache = empty_cache(2, 64, torch.bfloat16, device=CUDA)
    inputs = StepInputs(wide_room(feeds), NUM_BLOCKS, CUDA)
    batch = inputs.fill(feeds)
    queries = torch.randn(len(batch.tokens), 8, 64, device=CUDA, dtype=torch.bfloat16)

    def run():
        return paged_attend(queries, *cache.layer(0), batch.groups[0])

    used, expected = sum(feed.length for feed in feeds), run()
    out = torch.empty_like(expected)
    replay = CudaCapture(CUDA)(lambda: out.copy_(run()))
    inputs.fill(feeds[:1])
    replay()
    inputs.fill(feeds)
    replay()
    torch.testing.assert_close(out[:used], expected[:used], rtol=0, atol=0)
    assert cache.data.shape[2] == NUM_BLOCKS * TOKENS_PER_BLOCK
