"""max_num_tokens: no forward is larger, whatever drafts, and no prompt waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.mixed import batches, check_counters, mixed_executor, plain_texts
from tests.support.toys import hash_rule, plain, request, ruled, run, tokens_of
from trtla.errors import UsageError
from trtla.runtime.draft import Draft, fit
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

RULE = hash_rule(5, 3)


@examples(40)
@given(batches, st.integers(1, 6), st.integers(16, 40))
def test_no_forward_is_larger_whatever_drafts(asked, batch, budget) -> None:
    server = LookaheadConfig(4, 4, 3)
    budget = max(budget, server.max_decoding_tokens)
    executor, target, group = mixed_executor(server, batch=batch, budget=budget)
    outputs = run(executor, asked)
    assert max(target.fed) <= budget
    assert {key: tokens_of(value) for key, value in outputs.items()} == plain_texts(asked)
    for one in asked:
        check_counters(one, outputs[one.request_id][-1].stats, outputs[one.request_id])
    assert group.cache.pool.num_free == group.cache.pool.num_blocks


def test_a_text_with_one_token_left_feeds_no_window() -> None:
    """Where windows pay for the whole batch: the forward has room for the others' alone."""
    adaptive = {"adaptive": True, "drafter": DrafterSettings(("lookahead",))}
    asked = [
        request([0], 2, (2, 2, 0), 0, **adaptive),
        request([0], 2, (3, 2, 0), 1, drafter=DrafterSettings(("lookahead",))),
        request([0], 3, (4, 3, 0), 2, **adaptive),
        request([0], 3, (4, 4, 0), 3, **adaptive),
    ]
    executor, target, _ = mixed_executor(LookaheadConfig(4, 4, 3), batch=4, budget=21)
    outputs = run(executor, asked)
    assert max(target.fed) <= 21
    assert {key: tokens_of(value) for key, value in outputs.items()} == plain_texts(asked)


@examples(25)
@given(st.integers(1, 12), st.integers(1, 8))
def test_a_batch_that_is_larger_than_a_forward_ends_all_the_same(budget, batch) -> None:
    chain = DrafterSettings(("ngram", "prompt-lookup"), gamma=5)
    executor, target, _ = mixed_executor(AUTOREGRESSIVE, batch=batch, budget=budget)
    asked = [request([1, 2, 3] * (1 + i), 12, request_id=i, drafter=chain) for i in range(batch)]
    outputs = run(executor, asked)
    assert max(target.fed) <= budget
    assert {key: tokens_of(value) for key, value in outputs.items()} == plain_texts(asked)


def test_a_prompt_is_read_while_drafts_could_use_all_room() -> None:
    """Seven texts that draft 16 tokens a step each, a budget of 12, and then a prompt."""
    drafter = DrafterSettings(("ngram",), gamma=16, stop_if_unknown=False)
    executor, target, _ = mixed_executor(AUTOREGRESSIVE, batch=8, budget=12)
    for index in range(7):
        executor.submit(request([1, 2], 100, request_id=index, drafter=drafter))
    for _ in range(4):
        executor.poll()
    before = len(target.fed)
    executor.submit(request([3] * 20, 2, request_id=9, drafter=NO_DRAFTER))
    ended = set()
    while 9 not in ended:
        ended |= {o.request_id for o in executor.poll() if o.finish_reason}
    assert ended == {9}
    assert len(target.fed) - before <= 20 + 2
    assert max(target.fed) <= 12


def test_room_is_shared_evenly_and_what_short_drafts_leave_is_used() -> None:
    drafts = [Draft.chain(range(length)) for length in (1, 9, 0, 5, 9)]
    assert [len(draft.tokens) for draft in fit(drafts, 24)] == [1, 9, 0, 5, 9]
    assert [len(draft.tokens) for draft in fit(drafts, 17)] == [1, 5, 0, 5, 6]
    assert [len(draft.tokens) for draft in fit(drafts, 4)] == [1, 1, 0, 1, 1]
    assert [len(draft.tokens) for draft in fit(drafts, 0)] == [0] * 5


def test_a_window_is_fed_whole_or_not_at_all() -> None:
    """Nodes 1 to 3 are the window, 4 and 5 a candidate, 6 and 7 one that continues the window."""
    draft = Draft((7, 8, 9, 1, 2, 3, 4), (0, 1, 2, 0, 4, 2, 6), 4, (2, 3), (1, 2))
    assert draft.cut(7) is draft
    assert draft.cut(5) == Draft((7, 8, 9, 1, 2), (0, 1, 2, 0, 4), 4, (2, 3), (1, 2))
    assert draft.cut(3) == Draft((7, 8, 9), (0, 1, 2), 4, (2, 3), (1, 2))
    assert draft.cut(2) == Draft((1, 2), (0, 1))
    assert draft.cut(0) == Draft()


def test_a_triple_that_no_forward_can_hold_is_refused() -> None:
    executor, _ = ruled(RULE, 5, (4, 4, 4), max_num_tokens=9)
    with pytest.raises(UsageError, match="request 0 feeds up to 24 tokens a step"):
        executor.submit(request([1, 2], 5))
    small = [request([1, 2], 5, (2, 2, 1)), request([1, 2], 5, request_id=1, adaptive=True)]
    small.append(replace(request([1, 2], 5, request_id=2), drafter=NO_DRAFTER))
    for outputs in run(executor, small).values():
        assert tokens_of(outputs) == plain(RULE, [1, 2], 5)


def test_a_request_ends_in_time_between_the_chunks_of_a_prompt(monkeypatch) -> None:
    """Its time is over after the second of thirty forwards."""
    executor, model = ruled(RULE, 5, AUTOREGRESSIVE, max_num_tokens=5, max_batch_size=1)
    forward, now = model.forward_batch, [100.0]
    monkeypatch.setattr("trtla.runtime.loop.executor.time.monotonic", lambda: now[0])

    def slow(batch, cache):
        now[0] += 0.06
        return forward(batch, cache)

    model.forward_batch = slow
    executor.submit(request([1] * 150, 4, allotted_time_ms=100))
    (output,) = executor.poll()
    assert (output.finish_reason, output.new_tokens) == ("timed_out", ())
    assert len(model.fed) == 2
    assert executor.poll() == []
    assert executor._cache.pool.num_free == executor._cache.pool.num_blocks
