"""What a paged forward reads equals what `make_batch` says, padded or not; graphs' bookkeeping."""

from __future__ import annotations

import functools
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.build.models import Variant, make_model, save_model
from tests.examples import examples
from tests.runtime.paged import (
    CPU,
    NUM_BLOCKS,
    empty_cache,
    owners,
    paged_reference,
    sequence_of,
    steps,
    tree_feed,
    visible,
)
from tests.toys import request as toy_request
from tests.toys import run as run_requests
from tests.toys import tokens_of, visible_slots
from trtla.build.convert import convert
from trtla.formats.checkpoint import Checkpoint
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models import llama as model_module
from trtla.runtime.models.attention import attend
from trtla.runtime.models.batch import Forwarded, make_batch
from trtla.runtime.models.cuda import paged_attention
from trtla.runtime.models.cuda.graphs import GraphRunner, batch_buckets, bucket_of, token_buckets
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import PagedGroup, choose_splits, triton_attends
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.sequence import Feed
from trtla.settings.lookahead import LookaheadConfig

COUNT = 16
TRIPLE = LookaheadConfig(4, 4, 3)
PROMPTS = [[5, 9, 5, 9, 5, 9], [1, 2, 3, 4] * 9, [7]]


@functools.cache
def llama():
    """A small random model whose greedy texts loop, so that drafts are accepted."""
    variant = Variant("paged", {"max_position_embeddings": 160})
    model = make_model(variant)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2.0)
    folder = Path(tempfile.mkdtemp())
    save_model(model, variant, folder / "hf")
    convert(folder / "hf", folder / "ckpt", dtype="float32")
    checkpoint = Checkpoint.open(folder / "ckpt")
    return LlamaModel(checkpoint.config, checkpoint.full_tensors(), torch.float32, CPU)


@contextmanager
def reference_attention():
    """Paged groups are attended by the reference, everything else as ever."""

    def either(queries, keys, values, group, scale=None):
        known = paged_reference if isinstance(group, PagedGroup) else attend
        return known(queries, keys, values, group, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "attend", either, raising=False)
        patch.setattr(paged_attention, "paged_attend", paged_reference)
        yield patch


def fake_capture(run):
    """A graph that runs everything again, into the same tensor."""
    logits = run().clone()
    return lambda: logits.copy_(run()), logits


def wide_room(feeds):
    """More of everything than the feeds need, as a bucket has."""
    exact = Room.of(feeds)
    return Room(
        exact.tokens + 37,
        exact.prompt_tokens,
        exact.rows + 11,
        exact.prompts,
        exact.trees + 3,
        exact.longest_prompt,
        exact.longest_tree + 70,
        exact.blocks + 4,
        exact.context + 99,
    )


@given(steps(), st.booleans())
def test_step_inputs_equal_make_batch(feeds, padded):
    cache = empty_cache()
    expected = make_batch(feeds, cache, 1, torch.float32)
    room = wide_room(feeds) if padded else Room.of(feeds)
    batch = StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)
    for name in ("tokens", "positions", "lengths", "slots", "rows"):
        wanted, got = getattr(expected, name), getattr(batch, name)
        assert got[: len(wanted)].tolist() == wanted.tolist(), name
        assert padded or len(got) == len(wanted)
    wanted = [slots for group in expected.groups for slots in visible_slots(group)]
    got = [visible(group, *owner) for group in batch.groups for owner in owners(group)]
    assert list(map(sorted, got)) == list(map(sorted, wanted))


@given(st.lists(steps(prompts=0), min_size=2, max_size=3))
def test_inputs_forget_the_step_before(several):
    rooms = [wide_room(feeds) for feeds in several]
    room = Room(*(max(sizes) for sizes in zip(*map(astuple, rooms), strict=True)))
    reused = StepInputs(room, NUM_BLOCKS, CPU)
    for feeds in several:
        got, fresh = reused.fill(feeds), StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)
        for name in ("tokens", "positions", "lengths", "slots", "rows"):
            assert torch.equal(getattr(got, name), getattr(fresh, name)), name
        pairs = zip(got.groups, fresh.groups, strict=True)
        assert all(owners(a) == owners(b) for a, b in pairs)
        views = [
            [visible(g, *o) for g in batch.groups for o in owners(g)] for batch in (got, fresh)
        ]
        assert views[0] == views[1]


def astuple(room):
    return tuple(getattr(room, name) for name in Room.__dataclass_fields__)


@given(steps(prompts=0))
def test_padding_tokens_write_to_the_scratch_block_only(feeds):
    room = wide_room(feeds)
    batch = StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)
    used = sum(feed.length for feed in feeds)
    assert (batch.slots[:used] < NUM_BLOCKS * 32).all()
    assert (batch.slots[used:] // 32 == NUM_BLOCKS).all()


@given(st.integers(1, 200), st.integers(1, 33), st.data())
def test_every_step_has_a_bucket_that_is_not_wasteful(step_tokens, batch, data):
    buckets = token_buckets(step_tokens, batch)
    assert sorted(set(buckets)) == list(buckets)
    assert buckets[-1] == step_tokens * batch
    tokens = data.draw(st.integers(1, buckets[-1]))
    found = bucket_of(tokens, buckets)
    assert tokens <= found < tokens + max(tokens, step_tokens)
    assert bucket_of(buckets[-1] + 1, buckets) is None
    assert batch_buckets(batch)[-1] == batch


@given(st.integers(1, 10**5), st.integers(0, 10**6), st.integers(1, 200))
def test_splits_are_a_power_of_two_and_fill_the_device_at_most_twice(programs, context, processors):
    splits = choose_splits(programs, context, processors)
    assert splits & (splits - 1) == 0
    assert splits == 1 or splits * programs <= 2 * processors
    assert splits == 1 or splits * 128 <= context


def test_long_contexts_of_one_sequence_are_split():
    assert choose_splits(8, 4096, 132) == 32


def filled_cache(model):
    """A cache of random numbers whose last block is free, the others are sequences'."""
    cache = model.new_cache(NUM_BLOCKS + 1)
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(1)))
    cache.pool.allocate(NUM_BLOCKS * TOKENS_PER_BLOCK)
    return cache


@examples(20)
@given(steps(prompts=1))
def test_graphs_and_padding_never_change_logits(feeds):
    model = llama()
    cache, other = filled_cache(model), filled_cache(model)
    expected = model.forward(feeds, other).logits
    runner = GraphRunner(model.forward_batch, cache, 4, 90, 400, fake_capture)
    with reference_attention():
        for _ in range(2):
            torch.testing.assert_close(runner(feeds).logits, expected)
    used = make_batch(feeds, cache, 1, torch.float32).slots
    torch.testing.assert_close(cache.data[:, :, used], other.data[:, :, used])
    untouched = torch.ones(NUM_BLOCKS * TOKENS_PER_BLOCK, dtype=torch.bool)
    untouched[used] = False
    places = untouched.nonzero().flatten()
    assert torch.equal(cache.data[:, :, places], other.data[:, :, places])


def counting_runner(capture, batch=4):
    """A runner over a forward that only counts."""
    calls = []

    def forward(batch, cache):
        calls.append(len(batch.tokens))
        return Forwarded(batch.rows[:, None].float())

    cache = empty_cache()
    return GraphRunner(forward, cache, batch, 8, 100, capture), calls


def feeds_of(*sizes):
    """Generation steps with chains of so many fed tokens."""
    blocks = list(range(NUM_BLOCKS))
    return [tree_feed(sequence_of(40, n, blocks), tuple(range(n - 1))) for n in sizes]


def test_one_graph_is_captured_for_each_bucket():
    runner, _ = counting_runner(fake_capture)
    for sizes in ((1,), (1, 1), (3,), (4,), (2, 2), (8,), (8, 8, 1), (1,)):
        runner(feeds_of(*sizes))
    assert sorted(runner.captured) == [(1, 1), (2, 2), (4, 1), (4, 2), (8, 1), (24, 4)]


def test_steps_beyond_every_bucket_run_without_a_graph():
    runner, calls = counting_runner(fake_capture, batch=2)
    assert len(runner(feeds_of(9)).logits) == 9
    assert len(runner(feeds_of(1, 1, 1)).logits) == 3
    assert runner.captured == []
    assert calls == [9, 3]


def test_prompts_run_without_a_graph():
    runner, calls = counting_runner(fake_capture)
    prompt = sequence_of(0, 30, [1, 2], range(30), ())
    assert len(runner([Feed.prompt(prompt, 30, True), *feeds_of(2)]).logits) == 3
    assert runner.captured == []
    assert calls == [32]


def test_what_cannot_be_captured_runs_plainly_and_is_not_tried_again():
    tries = []

    def failing(run):
        tries.append(run)
        raise RuntimeError("operation not permitted when stream is capturing")

    runner, calls = counting_runner(failing)
    for _ in range(3):
        assert runner(feeds_of(3)).logits.flatten().tolist() == [0, 1, 2]
    assert len(tries) == 1
    assert calls == [3, 3, 3]
    assert "capturing" in runner.problem


def test_no_kernel_is_chosen_on_a_cpu():
    assert not triton_attends(64, torch.float32, CPU, fp8=False)
    cache, limits = empty_cache(), ExecutorLimits(2, 64, 64, 256, 101, TRIPLE)
    model, free = llama(), cache.pool.num_free
    assert not isinstance(model.step_forward(cache, limits), GraphRunner)
    assert cache.pool.num_free == free


def texts(runner_of=None):
    """Greedy texts of all prompts at once; with a runner the executor's steps go through it."""
    model = llama()
    limits = ExecutorLimits(3, 64, 96, 512, 101, TRIPLE)
    executor = TorchExecutor(model, model.new_cache(16), limits)
    with reference_attention() as patch:
        if runner_of is not None:
            route(executor, runner_of(model, executor._cache), patch)
        requests = [toy_request(prompt, COUNT, request_id=i) for i, prompt in enumerate(PROMPTS)]
        outputs = run_requests(executor, requests)
    return [tokens_of(outputs[i]) for i in range(len(PROMPTS))], executor.stats()


def route(executor, runner, patch):
    """Let an executor's steps go through a runner."""
    patch.setattr(executor, "_forward", runner)


def test_texts_through_graphs_are_the_same():
    runners = []

    def runner_of(model, cache):
        step, most = TRIPLE.max_decoding_tokens, 96 + TRIPLE.max_draft_len
        runners.append(GraphRunner(model.forward_batch, cache, 3, step, most, fake_capture))
        return runners[0]

    expected, plain = texts()
    got, stats = texts(runner_of)
    assert got == expected
    assert stats.accepted == plain.accepted > 0
    assert len(runners[0].captured) > 1
