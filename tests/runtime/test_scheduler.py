"""In-flight batching and block bookkeeping, in integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toys import hash_rule, plain, request, ruled, run, sequence, tokens_of
from trtla.errors import TrtlaError
from trtla.runtime.blocks import BlockPool
from trtla.runtime.draft import Draft
from trtla.runtime.loop.scheduler import Scheduler
from trtla.runtime.sampling.accept import accept

RULE = hash_rule(5, 3)


def test_first_come_first_served_within_the_batch():
    scheduler = Scheduler(2, 100, BlockPool(64))
    for index in range(4):
        scheduler.add(sequence(5, index))
    plan = scheduler.next()
    assert [c.sequence.request.request_id for c in plan.prompts] == [0, 1]
    scheduler.finish(plan.prompts[0].sequence)
    assert [c.sequence.request.request_id for c in scheduler.next().prompts] == [1, 2]


def test_prompts_are_cut_to_the_token_budget_and_generation_goes_first():
    scheduler = Scheduler(3, 20, BlockPool(64))
    first, second = sequence(4, 0), sequence(50, 1)
    scheduler.add(first)
    scheduler.add(second)
    assert [feed.length for feed in scheduler.next().prompts] == [4, 16]
    first.output_ids.append(7)
    first.num_cached, second.num_cached = 4, 16
    plan = scheduler.next()
    assert plan.generation == [first]
    assert [(feed.length, feed.rows) for feed in plan.prompts] == [(17, ())]


def test_a_sequence_waits_until_its_whole_need_is_free():
    blocks = BlockPool(2)
    scheduler = Scheduler(8, 100, blocks)
    scheduler.add(sequence(40, 0))
    scheduler.add(sequence(5, 1))
    (chunk,) = scheduler.next().prompts
    assert blocks.num_free == 0
    scheduler.finish(chunk.sequence)
    assert [c.sequence.request.request_id for c in scheduler.next().prompts] == [1]


def test_few_blocks_delay_but_do_not_change():
    requests = [request([i % 5] * 20, 30, request_id=i) for i in range(6)]
    executor, _ = ruled(RULE, 5, (4, 4, 4), num_blocks=7, max_text_len=100)
    outputs = run(executor, requests)
    for one in requests:
        assert tokens_of(outputs[one.request_id]) == plain(RULE, one.input_ids, 30)
    assert executor._cache.pool.num_free == 7


def test_cancel_frees_the_place_and_reports_once():
    executor, _ = ruled(RULE, 5, (2, 2, 1), max_batch_size=1)
    for index in range(3):
        executor.submit(request([1, 2], 30, request_id=index))
    executor.poll()
    executor.cancel(0)
    executor.cancel(2)
    executor.cancel(99)
    ended, left = {}, []
    while outputs := executor.poll():
        for output in outputs:
            ended[output.request_id] = output.finish_reason
            left += output.new_tokens if output.request_id == 1 else ()
    assert ended == {0: "cancelled", 2: "cancelled", 1: "length"}
    assert left == plain(RULE, [1, 2], 30)
    executor.submit(request([1], 2, request_id=0))


def test_a_cache_that_holds_no_request_is_refused():
    with pytest.raises(TrtlaError, match="cannot hold a request of 183 tokens"):
        ruled(RULE, 5, (4, 4, 4), num_blocks=5, max_text_len=160)


def test_consecutive_blocks_are_preferred():
    pool = BlockPool(8)
    first, second = pool.allocate(32), pool.allocate(64)
    assert (first, second) == ((0,), (1, 2))
    pool.release(first)
    assert pool.allocate(64) == (3, 4)
    assert pool.allocate(96) == (5, 6, 7)


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=6), st.data())
def test_11_accept_takes_the_longest_matching_path(candidates, data):
    """Against trying each candidate on its own; draws are a function of the path."""
    answers = data.draw(
        st.fixed_dictionaries({(): st.integers(0, 2)} | {(i,): st.integers(0, 2) for i in range(3)})
    )

    def target(path):
        return answers[tuple(path[-1:])] if len(path) < 3 else 1

    tokens = [token for one in candidates for token in one]
    parents = [p for i in range(len(candidates)) for p in (0, 3 * i + 1, 3 * i + 2)]
    draft = Draft(tuple(tokens), tuple(parents))
    paths = {0: []} | {
        3 * i + k + 1: c[: k + 1] for i, c in enumerate(candidates) for k in range(3)
    }
    emitted, nodes = accept(draft, {node: target(path) for node, path in paths.items()})
    best = []
    for one in candidates:
        length = 0
        while length < 3 and one[length] == target(one[:length]):
            length += 1
        best = max(best, one[:length], key=len)
    assert list(emitted) == [*best, target(best)]
    assert [tokens[node - 1] for node in nodes] == best
