"""How often each drafted position was accepted: what the steps' lengths tell against the steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.mixed import batches, mixed_executor
from trtla.runtime.stats import RequestStats, accepted_lengths, accepted_per_pos
from trtla.settings.lookahead import LookaheadConfig


@given(batches, st.integers(0, 2), st.integers(0, 11))
@examples(40)
def test_positions_are_those_that_the_steps_accepted(asked, salt, end_id) -> None:
    """Every drafter, alone and in chains, texts that end within a draft among them."""
    asked = [replace(one, end_ids=frozenset({end_id})) for one in asked]
    executor, _, _ = mixed_executor(LookaheadConfig(4, 4, 3), draft_salt=salt)
    for one in asked:
        executor.submit(one)
    seen: dict[int, list[int]] = {one.request_id: [] for one in asked}
    stats: dict[int, RequestStats] = {}
    while outputs := executor.poll():
        for output in outputs:
            seen[output.request_id].append(output.stats.accepted)
            stats[output.request_id] = output.stats
    for key, found in stats.items():
        of_steps = [after - before for before, after in pairwise(seen[key])]
        assert found.accepted_lengths == tuple(of_steps)
        shares = found.accepted_per_pos
        assert shares is not None
        assert shares == [
            sum(count > place for count in of_steps) / found.steps
            for place in range(max(of_steps, default=0))
        ]
        assert all(1 >= one >= other > 0 for one, other in pairwise([1.0, *shares]))
        assert sum(shares) * found.steps == pytest.approx(found.accepted)
        behind = sum(found.step_lengths) - 1
        assert found.steps * found.tokens_per_step == pytest.approx(behind if found.steps else 0)


def test_steps_times_tokens_per_step_are_the_tokens() -> None:
    """A text that ends within its draft has no token of the target's own in its last step."""
    llm_stats = RequestStats(steps=1, accepted=1, step_lengths=[1, 1])
    assert (llm_stats.decoded, llm_stats.tokens_per_step) == (1, 1.0)
    begun = RequestStats(steps=2, accepted=1, step_lengths=[40, 2, 1])  # by another executor
    assert (begun.decoded, begun.tokens_per_step) == (3, 1.5)
    together = RequestStats(steps=4, accepted=3, step_lengths=[1, 5, 2])  # several steps as one
    assert (together.decoded, together.tokens_per_step) == (7, 1.75)
    for nothing in ([], [1]):
        assert RequestStats(step_lengths=nothing).tokens_per_step == 1.0


def test_a_text_that_ends_within_its_draft_has_the_whole_last_step() -> None:
    """The target counts up; its draft of 4 is right, and 7 ends the text as an accepted token."""
    assert accepted_lengths([1, 5, 3], 2, 7) == (4, 3)
    assert accepted_lengths([1, 5, 3], 2, 6) == (4, 2)
    assert accepted_per_pos([(4, 3)]) == [1.0, 1.0, 1.0, 0.5]


def test_several_requests_share_their_steps() -> None:
    assert accepted_per_pos([(2, 0), (1,), (0,)]) == [0.5, 0.25]
    assert accepted_per_pos([(0, 0)]) == accepted_per_pos([]) == []
    assert accepted_per_pos([(1,), None]) is None


def test_steps_that_were_reported_as_one_are_not_told_apart() -> None:
    assert accepted_lengths([1, 4], 2, 2) is None
    assert accepted_lengths([3], 0, 2) is None
    assert accepted_lengths([1, 4, 2], 2, 1) is None
    assert RequestStats(steps=2, accepted=2, step_lengths=[1, 4]).accepted_per_pos is None
