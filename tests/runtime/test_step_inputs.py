"""What a paged forward reads equals what `make_batch` says, padded or not; graphs' bookkeeping."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.paged import (
    CPU,
    NUM_BLOCKS,
    TRIPLE,
    empty_cache,
    fake_capture,
    filled_cache,
    llama,
    owners,
    reference_attention,
    sequence_of,
    steps,
    tapped,
    tree_feed,
    visible,
    wide_room,
)
from tests.support.toys import visible_slots
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import Batch, BatchOutput, make_batch
from trtla.runtime.models.cuda.graphs import Bucket, GraphRunner, buckets
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import kernels_problem, stretch_of
from trtla.runtime.sequence import Feed


@given(st.tuples(steps()) | st.lists(steps(prompts=0), min_size=2, max_size=3), st.booleans())
def test_inputs_of_steps_one_after_another_equal_make_batch(several, padded):
    """Nothing of the step before is left; padding tokens write to the scratch block only."""
    cache, rooms = empty_cache(), [(wide_room if padded else Room.of)(feeds) for feeds in several]
    room = Room(*(max(sizes) for sizes in zip(*map(astuple, rooms), strict=True)))
    inputs = StepInputs(room, NUM_BLOCKS, CPU)
    for feeds in several:
        expected, batch = make_batch(feeds, cache, 1, torch.float32), inputs.fill(feeds)
        fresh = StepInputs(room, NUM_BLOCKS, CPU).fill(feeds)
        for name in ("tokens", "positions", "lengths", "slots", "rows"):
            wanted, got = getattr(expected, name), getattr(batch, name)
            assert got[: len(wanted)].tolist() == wanted.tolist(), name
            assert torch.equal(got, getattr(fresh, name)), name
            assert padded or len(several) > 1 or len(got) == len(wanted)
        wanted = [slots for group in expected.groups for slots in visible_slots(group)]
        got = [visible(group, *owner) for group in batch.groups for owner in owners(group)]
        assert list(map(sorted, got)) == list(map(sorted, wanted))
        used = len(expected.tokens)
        assert (batch.slots[:used] < NUM_BLOCKS * TOKENS_PER_BLOCK).all()
        assert (batch.slots[used:] // TOKENS_PER_BLOCK == NUM_BLOCKS).all()


@given(st.integers(1, 200), st.integers(0, 20), st.integers(1, 33), st.data())
def test_every_step_has_a_bucket_that_is_not_wasteful(step, more, batch, data):
    sizes = sorted({step, step + more})
    made = buckets(sizes, batch)
    assert [one.tokens for one in made] == sorted(one.tokens for one in made)
    count = data.draw(st.integers(1, batch))
    each = data.draw(st.integers(1, step + more))
    fits = [one for one in made if one.holds(count * each, count)]
    if fits:
        assert fits[0].tokens < 4 * count * each + 2 * batch
    else:  # launches are a small share of such a step
        assert count * each > 512


def test_the_step_of_the_triple_has_a_bucket_of_just_its_size():
    made = buckets((84, 100), 2)
    assert Bucket(84, 1) in made
    assert Bucket(168, 2) in made
    assert max(one.tokens for one in made) == 200


@given(st.integers(1, 200), st.integers(1, 33), st.integers(1, 900), st.data())
def test_no_bucket_is_larger_than_a_step_and_none_is_missing(step, batch, most, data):
    made = buckets((step,), batch, most)
    assert len(set(made)) == len(made)
    largest = min(most, step * batch, max(512, step))
    assert max(one.tokens for one in made) == largest
    count = data.draw(st.integers(1, min(batch, most)))
    tokens = data.draw(st.integers(count, min(count * step, max(count, largest))))
    assert any(one.holds(tokens, count) for one in made) or tokens > largest


@given(st.integers(0, 10**6))
def test_texts_are_cut_into_few_stretches(context):
    stretch = stretch_of(context)
    assert stretch & (stretch - 1) == 0
    assert context <= 32 * stretch
    assert stretch == 128 or context > 16 * stretch


@examples(20)
@given(steps(prompts=1))
def test_graphs_and_padding_never_change_logits(feeds):
    model, taps = llama(), (1, 0)
    cache, other = filled_cache(model), filled_cache(model)
    with tapped(model, feeds, taps):
        expected = model.run(feeds, other)
    runner = GraphRunner(model.forward_batch, cache, 4, (84, 90), 400, fake_capture, taps=taps)
    with reference_attention():
        for _ in range(2):
            found = runner(feeds)
            torch.testing.assert_close(found.logits, expected.logits)
            torch.testing.assert_close(found.hidden, expected.hidden)
    used = make_batch(feeds, cache, 1, torch.float32).slots
    torch.testing.assert_close(cache.data[:, :, used], other.data[:, :, used])
    untouched = torch.ones(NUM_BLOCKS * TOKENS_PER_BLOCK, dtype=torch.bool)
    untouched[used] = False
    places = untouched.nonzero().flatten()
    assert torch.equal(cache.data[:, :, places], other.data[:, :, places])


def test_graphs_keep_states_that_nobody_wants_to_themselves():
    """Other steps tap nothing then."""
    seen, cache = [], empty_cache()

    def forward(batch, cache):
        seen.append(batch.taps)
        states = batch.tokens[None, :, None].float().repeat(len(batch.taps), 1, 1)
        return BatchOutput(batch.rows[:, None].float(), states if batch.taps else None)

    runner = GraphRunner(forward, cache, 2, (8,), 100, fake_capture, taps=(3, 1))
    runner.capture_all()
    assert {*seen} == {(3, 1)}
    seen.clear()
    alone, prompt, beyond = feeds_of(3), prompt_of_30(), feeds_of(9)
    for feeds, taps in ((alone, [(3, 1)]), ([prompt, *alone], [(), (3, 1)]), (beyond, [()])):
        assert runner(feeds).hidden is None
        assert seen == taps
        seen.clear()
    for one in (alone[0], beyond[0]):
        one.sequence.drafter.wants_states = True
    for feeds in (alone, [prompt, *alone], beyond):
        tokens = [token for feed in feeds for token in feed.tokens]
        assert runner(feeds).hidden.tolist() == [[[token] for token in tokens]] * 2
        assert {*seen} == {(3, 1)}


def counting_runner(capture, batch=4):
    """A runner over a forward that only counts."""
    calls = []

    def forward(batch, cache):
        calls.append(len(batch.tokens))
        return BatchOutput(batch.rows[:, None].float())

    cache = empty_cache()
    return GraphRunner(forward, cache, batch, (8,), 100, capture), calls


def feeds_of(*sizes):
    """Generation steps with chains of so many fed tokens."""
    blocks = list(range(NUM_BLOCKS))
    return [tree_feed(sequence_of(40, n, blocks), tuple(range(n - 1))) for n in sizes]


def test_steps_of_a_bucket_share_a_graph():
    runner, calls = counting_runner(fake_capture)
    for sizes in ((1,), (1, 1), (3,), (4,), (2, 2), (8,), (8, 8, 1), (1,)):
        assert len(runner(feeds_of(*sizes)).logits) == sum(sizes)
    expected = {(1, 1), (2, 2), (4, 1), (4, 2), (8, 1), (32, 4)}
    assert {(one.tokens, one.sequences) for one in runner.captured} == expected
    assert calls == [1, 1, 2, 2, 4, 4, 4, 4, 4, 8, 8, 32, 32, 1]


def test_no_sequence_gets_the_block_of_padding_tokens():
    cache = empty_cache()
    before = cache.pool.num_blocks
    GraphRunner(lambda *_: None, cache, 1, (8,), 100)
    cache.pool.reset()
    assert cache.pool.num_blocks == before - 1
    blocks = cache.pool.allocate(cache.pool.num_free * TOKENS_PER_BLOCK)
    assert blocks is not None
    assert before - 1 not in blocks


def test_all_are_captured_at_once_the_largest_first_into_one_buffer():
    runner, calls = counting_runner(fake_capture, batch=2)
    runner.capture_all()
    assert calls == sorted(calls, reverse=True)
    assert calls[0] == 16
    before = len(calls)
    first = runner(feeds_of(8)).logits
    second = runner(feeds_of(1, 1)).logits
    assert first.data_ptr() == second.data_ptr()
    assert len(calls) == before + 2


def test_graphs_move_what_the_step_before_has_accepted():
    """Where there is no room for all of them, and before prompts, they are moved at once."""
    runner, _ = counting_runner(fake_capture)
    cache = runner._cache
    cache.data.zero_()
    moved = []
    runner._forward = lambda batch, cache: (
        moved.append(batch.moves if batch.moves is None else batch.moves.tolist()),
        BatchOutput(batch.rows[:, None].float()),
    )[1]
    cache.data[:, :, 40:80] = torch.arange(40.0)[:, None, None]
    cache.move_later([(45, 41), (47, 42)])
    runner(feeds_of(4))
    scratch = runner._scratch * TOKENS_PER_BLOCK
    assert moved[-1] == [[45, 47, *[scratch] * 6], [41, 42, *[scratch] * 6]]
    runner(feeds_of(4))
    assert moved[-1] == [[scratch] * 8] * 2
    for feeds, place in ((feeds_of(4), 41), (feeds_of(9), 60)):
        many = [(70 - i, place + i) for i in range(9)]
        wanted = cache.data[0, 0, [source for source, _ in many], 0, 0].tolist()
        cache.move_later(many)
        runner(feeds)
        assert moved[-1] in (None, [[scratch] * 8] * 2)
        assert cache.data[0, 0, place : place + 9, 0, 0].tolist() == wanted
    assert cache.take_moves() == []


def test_prompts_and_steps_beyond_every_bucket_run_without_a_graph():
    runner, calls = counting_runner(fake_capture, batch=2)
    assert len(runner(feeds_of(9)).logits) == 9
    assert len(runner(feeds_of(1, 1, 1)).logits) == 3
    assert len(runner([prompt_of_30()]).logits) == 1
    assert runner.captured == []
    assert calls == [9, 3, 30]


def test_prompts_and_the_steps_beside_them_are_two_forwards():
    runner, calls = counting_runner(fake_capture, batch=2)
    assert len(runner([prompt_of_30(), *feeds_of(2)]).logits) == 3
    assert [bucket.tokens for bucket in runner.captured] == [2]
    assert calls[0] == 30


def prompt_of_30():
    return Feed.prompt(sequence_of(0, 30, [1, 2], range(30), ()), 30, True)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError])
def test_after_a_failed_capture_steps_run_plainly_and_one_line_says_so(caplog, error):
    tries = []

    def failing(run):
        run()
        tries.append(run)
        if len(tries) > 2:
            raise error("operation not permitted when stream is capturing\nat line 3")
        return run

    runner, calls = counting_runner(failing)
    runner.capture_all()
    assert runner.captured == []
    calls.clear()
    for _ in range(3):
        assert runner(feeds_of(3)).logits.flatten().tolist() == [0, 1, 2]
    assert len(tries) == 3
    assert calls == [4, 4, 4]
    assert runner.problem == "operation not permitted when stream is capturing"
    assert len(caplog.records) == 1


def short_of_memory(most, tries, before=False):
    """A capture that has memory for so many tokens; it fails in its first run or in its second."""

    def capture(run):
        if not before:
            run()
        (batch,) = (cell.cell_contents for cell in run.__closure__ if is_batch(cell.cell_contents))
        tries.append(len(batch.tokens))
        if len(batch.tokens) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        run()
        return run

    return capture


def is_batch(value):
    return isinstance(value, Batch)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("most", "tokens", "steps"),
    [
        (8, {1, 2, 4, 8}, (((8, 8, 1), 32), ((8,), 8), ((3,), 4), ((8, 1), 16))),
        (0, set(), (((3,), 4),)),
    ],
)
def test_graphs_that_find_no_memory_are_missing_alone(caplog, before, most, tokens, steps):
    tries = []
    runner, calls = counting_runner(short_of_memory(most, tries, before))
    runner.capture_all()
    assert tries == sorted(tries, reverse=True)
    assert tries[0] == 32
    assert {one.tokens for one in runner.captured} == tokens
    assert runner.problem is None
    assert not runner.is_complete
    [line] = caplog.messages
    assert f"more than {most} tokens" in line
    calls.clear()
    tries.clear()
    for sizes, fed in steps:
        assert len(runner(feeds_of(*sizes)).logits) == sum(sizes)
        assert calls.pop() == fed
    assert tries == []
    if tokens:  # what graphs leave their logits in is as large as the largest one
        assert len(runner._kept.logits) == most


def test_another_failure_after_one_of_memory_gives_up_all_graphs(caplog):
    def failing(run):
        run()
        if len(calls) < 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        raise RuntimeError("operation not permitted")

    runner, calls = counting_runner(failing, batch=2)
    runner.capture_all()
    assert runner.problem == "operation not permitted"
    assert len(caplog.records) == 1


def test_no_kernel_is_chosen_on_a_cpu():
    assert kernels_problem(llama().config, torch.float32, CPU) == "the device is cpu"
    cache, limits = empty_cache(), ExecutorLimits(2, 64, 64, 256, 101, TRIPLE)
    model, free = llama(), cache.pool.num_free
    assert not isinstance(model.step_forward(cache, limits), GraphRunner)
    assert cache.pool.num_free == free
