"""Steps survive being sent as JSON and decoded again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.ranks.steps import read_step, step_message
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.lookahead import AUTOREGRESSIVE


@st.composite
def feeds(draw):
    """A stretch of a prompt, or an input token with a tree of drafts."""
    prompt = tuple(draw(st.lists(st.integers(0, 200_000), min_size=1, max_size=40)))
    cached = draw(st.integers(0, len(prompt) - 1))
    blocks = tuple(draw(st.lists(st.integers(0, 10_000), min_size=1, max_size=6)))
    drafter = NoDrafter()
    drafter.wants_states = draw(st.booleans())
    sequence = Sequence(Request(7, prompt), AUTOREGRESSIVE, drafter, [], cached, blocks)
    if draw(st.booleans()):
        length = draw(st.integers(1, len(prompt) - cached))
        return Feed.prompt(sequence, length, draw(st.booleans()))
    sequence.output_ids = [draw(st.integers(0, 200_000))]
    sequence.num_cached = len(prompt)
    parents = [draw(st.integers(0, node)) for node in range(draw(st.integers(0, 12)))]
    tokens = tuple(draw(st.integers(0, 200_000)) for _ in parents)
    return Feed.step(sequence, Draft(tokens, tuple(parents)))


def seen(feed):
    """All that a forward reads of a feed."""
    positions, sequence = feed.positions(), feed.sequence
    drafted = None if feed.draft is None else feed.draft.parents
    at = (sequence.num_cached, sequence.blocks, feed.total, sequence.drafter.wants_states)
    return (feed.tokens, feed.rows, positions, feed.lengths(positions), drafted, *at)


@examples(200)
@given(st.lists(feeds(), max_size=5), st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999))))
def test_feeds_and_moves_arrive_as_they_are(given_feeds, moves):
    found, moved = read_step(json.loads(json.dumps(step_message(given_feeds, moves))))
    assert [seen(one) for one in found] == [seen(one) for one in given_feeds]
    assert moved == moves
