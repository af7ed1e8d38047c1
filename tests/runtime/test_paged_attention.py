"""The Triton kernels against trtla's own attention: interpreted on a CPU, compiled on a GPU.

Without Triton everything here is skipped. bfloat16 is for GPUs only: Triton's interpreter
multiplies its bit patterns.
"""

from __future__ import annotations

from dataclasses import replace

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
    tapped,
    tree_feed,
    wide_room,
)
from tests.support.unchanged import CUDA_SOURCES
from trtla.formats.config import Quantization
from trtla.formats.torch_tensors import quantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.cuda import tree_kernels
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
    not type(tree_kernels.attend_trees).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
sizes = st.sampled_from((16, 32, 64, 128))
group_size = st.integers(1, 4)
small_steps = steps(prompts=1, generating=2, longest=12)
splits = st.booleans()
long_steps = steps(prompts=0, generating=1, most_cached=1100)


def check(feeds, cache, group_size, dtype, split, room=None, window=None):
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
            paged_attend(queries[g.rows], keys, values, g, scale, split)
            for g in batch.seen_in(window)
        ]
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got[:used], expected, rtol=tolerance, atol=tolerance)


@interpreted
@examples(12)
@given(small_steps, st.integers(1, 2), group_size, sizes, splits, st.booleans())
def test_trees_and_prompts_equal_packed_attention(feeds, kv_heads, group_size, size, split, padded):
    cache = empty_cache(kv_heads, size)
    room = wide_room(feeds) if padded else None
    check(feeds, cache, group_size, torch.float32, split, room)


@interpreted
@examples(12)
@given(small_steps, group_size, splits, st.sampled_from((1, 5, 32, 90)), st.booleans())
def test_what_a_window_hides_is_not_seen(feeds, group_size, split, window, padded):
    room = wide_room(feeds) if padded else None
    check(feeds, empty_cache(2, 16), group_size, torch.float32, split, room, window)


@interpreted
@examples(4)
@given(small_steps, group_size, sizes, splits)
def test_half_precision_stays_within_its_rounding(feeds, group_size, size, split):
    check(feeds, empty_cache(2, size, torch.float16), group_size, torch.float16, split)


def fp8_cache(size, device=CPU):
    """A cache of random e4m3 numbers, with a scale that is not a power of 2."""
    cache = TensorCache(1, 2, size, NUM_BLOCKS, torch.float32, device, [0.013])
    numbers = torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0))
    cache.data.copy_(quantize(numbers.to(device), cache.scale(0)).view(torch.uint8))
    return cache


@interpreted
@examples(4)
@given(small_steps, group_size, sizes, splits)
def test_fp8_caches_are_scaled(feeds, group_size, size, split):
    check(feeds, fp8_cache(size), group_size, torch.float32, split)


@interpreted
@examples(5)
@given(st.integers(100, 500), splits, st.booleans())
def test_stretches_of_long_texts_are_joined(cached, split, padded):
    """A tree whose nodes lie on both sides of a stretch's end, where the text ends just before."""
    blocks = list(range(NUM_BLOCKS))
    feeds = [tree_feed(sequence_of(cached, 9, blocks), (0, 1, 2, 0, 4, 5, 6, 7))]
    feeds.append(tree_feed(sequence_of(257 - cached // 2, 1, blocks), ()))
    room = wide_room(feeds) if padded else None
    check(feeds, empty_cache(), 2, torch.float32, split, room)


@interpreted
@pytest.mark.parametrize("split", [False, True])
def test_a_long_chain_is_seen_node_by_node(split):
    blocks = list(range(NUM_BLOCKS))
    feeds = [tree_feed(sequence_of(33, 40, blocks), tuple(range(39)))]
    check(feeds, empty_cache(1), 4, torch.float32, split)


@interpreted
@examples(6)
@given(steps(prompts=1, generating=2, most_cached=60, longest=12))
def test_a_model_on_pages_gives_the_logits_of_the_packed_one(feeds):
    model, taps = llama(), (1, 0)
    cache, other = filled_cache(model), filled_cache(model)
    with tapped(model, feeds, taps):
        expected = model.run(feeds, other)
    runner = GraphRunner(model.forward_batch, cache, 4, (84, 90), 400, fake_capture, taps=taps)
    for _ in range(2):
        found = runner(feeds)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, where Triton has NaN
@examples(12)
@given(small_steps, sizes, splits, st.data())
def test_keys_that_are_not_finite_reach_only_who_sees_them(feeds, size, split, data):
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
        found = paged_attend(own, keys, values, group, None, split).view(len(own), 4, size)
        wanted = paged_reference(own, keys, values, group).view(len(own), 4, size)
        assert torch.equal(found.isnan(), wanted.isnan())
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trtla.runtime.models.cuda import kernels, tree_kernels

target = GPUTarget("cuda", {capability}, 32)

def built(kernel, constants, **types):
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {{name: types.get(name, "i32") for name in names}}
    signature |= dict.fromkeys(constants, "constexpr")
    done = compile(ASTSource(kernel, signature, constants), target=target)
    assert done.asm["cubin"] and done.metadata.shared <= 101376, done.metadata.shared

pointers = dict(queries="*{dtype}", keys="*{cache}", values="*{cache}", sequences="*i32")
pointers |= dict(positions="*i64", scale="*fp32", out="*{dtype}", factor="fp32")
parts = dict(parts="*fp32", peaks="*fp32", totals="*fp32", owners="*i64", paths="*i16")
sizes = dict(KV_HEADS=8, GROUP_SIZE=4, HEAD_SIZE=128, PAGE=32, BLOCK_N=64)
sizes |= dict(SCALED={scaled}, WINDOWED={windowed})
built(kernels.attend_prompts, sizes | dict(BLOCK_M={tile}), **pointers)
cut = dict(STRETCH=128, SPLIT={split})
built(tree_kernels.attend_trees, sizes | cut | dict(BLOCK_M=min({tile}, 64)), **pointers, **parts)
built(tree_kernels.attend_paths, sizes | cut | dict(BLOCK_M=16), **pointers, **parts)
"""


@pytest.mark.parametrize(
    ("capability", "mode"),
    [
        (80, ("bf16", "bf16", 128, 1, 0, 1)),
        (90, ("fp16", "fp16", 16, 0, 0, 1)),
        (90, ("bf16", "fp8e4nv", 64, 1, 1, 0)),
    ],
    ids=["bfloat16", "float16", "fp8-cache"],
)
def test_kernels_compile_to_machine_code_without_a_gpu(capability, mode, tmp_path):
    names = ("dtype", "cache", "tile", "split", "scaled", "windowed")
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
    for split in (False, True, None):
        check(feeds, cache, group_size, dtype, split, wide_room(feeds) if padded else None)


def alone(feed, node, cache):
    """The step that decodes one node of a tree without the others, and a cache that holds its text
    in order."""
    path, parents = [node], (0, *feed.draft.parents)
    while path[0]:
        path.insert(0, parents[path[0]])
    (table, cached), copy = (feed.sequence.blocks, feed.sequence.num_cached), cache.data.clone()
    for place, fed in enumerate(path):
        target, source = (
            table[(cached + at) // TOKENS_PER_BLOCK] * TOKENS_PER_BLOCK
            + (cached + at) % TOKENS_PER_BLOCK
            for at in (place, fed)
        )
        copy[:, :, target] = cache.data[:, :, source]
    other = TensorCache(1, *cache.data.shape[-2:], NUM_BLOCKS, cache.data.dtype, cache.data.device)
    other.data.copy_(copy)
    text = sequence_of(cached + len(path) - 1, 1, list(table)[::-1])
    return tree_feed(replace(text, blocks=table), ()), other


def trees_beside(feeds, cache, group_size, split, room, node_of):
    """(a row of a step, the same decoded alone) of one node of each feed."""
    shape = (sum(feed.length for feed in feeds), group_size * 2, cache.data.shape[-1])
    queries = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    queries = queries.to(cache.data)
    start = 0
    padded = torch.cat((queries, queries.new_zeros(room.tokens - len(queries), *shape[1:])))
    batch = StepInputs(room, NUM_BLOCKS, cache.data.device).fill(feeds)
    found = paged_attend(padded, *cache.layer(0), batch.groups[0], None, split)
    for feed in feeds:
        node = node_of(feed.length)
        single, other = alone(feed, node, cache)
        one = StepInputs(Room.of([single]), NUM_BLOCKS, cache.data.device).fill([single])
        query = queries[start + node : start + node + 1]
        for cut in (False, True):
            yield (
                found[start + node],
                paged_attend(query, *other.layer(0), one.groups[0], None, cut)[0],
            )
        start += feed.length


@interpreted
@examples(8)
@given(steps(prompts=0, generating=2, most_cached=300, longest=9), splits, st.data())
def test_a_node_of_a_tree_is_attended_as_if_decoded_alone(feeds, split, data):
    def any_of(length):
        return data.draw(st.integers(0, length - 1))

    for found, wanted in trees_beside(feeds, empty_cache(), 2, split, wide_room(feeds), any_of):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
@examples(20)
@given(
    steps(prompts=0, generating=1, most_cached=1100), st.sampled_from((1, 4, 8)), splits, st.data()
)
def test_a_nodes_bits_do_not_depend_on_what_is_beside_it(dtype, feeds, group_size, split, data):
    def any_of(length):
        return data.draw(st.integers(0, length - 1))

    cache = on_cuda(empty_cache(2, 128, dtype))
    for found, wanted in trees_beside(feeds, cache, group_size, split, wide_room(feeds), any_of):
        assert torch.equal(found, wanted)


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
