"""Beam search: which hypotheses live on, against exhaustive search, and on a model with a cache."""

from __future__ import annotations

import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.real_models import tiny_model
from tests.support.toys import request
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import TrtlaError, UsageError
from trtla.runtime.loop.beams import CachedBeams, beam_search
from trtla.settings.sampling import BeamSettings

NO_ENDS: frozenset[int] = frozenset()


class Spoken:
    """Log probabilities from a function of the text alone."""

    def __init__(self, row):
        self.row, self.live = row, [()]
        self.asked = 0

    def start(self):
        return self.row(())

    def follow(self, parents, tokens):
        self.asked += 1
        self.live = [(*self.live[p], t) for p, t in zip(parents, tokens, strict=True)]
        return [self.row(text) for text in self.live]


def random_rows(vocab, salt):
    def row(text):
        digest = hashlib.sha256(repr((salt, text)).encode()).digest()
        weights = [1 + digest[i % 32] for i in range(vocab)]
        return [math.log(weight / sum(weights)) for weight in weights]

    return row


def score(row, text, chosen):
    log_prob = sum(row(text[:i])[token] for i, token in enumerate(text))
    return log_prob / chosen.penalty(len(text))


@given(st.integers(2, 5), st.integers(0, 999), st.floats(0.0, 3.0))
def test_as_many_beams_as_tokens_find_the_best_of_all_texts(vocab, salt, alpha):
    row, chosen = random_rows(vocab, salt), BeamSettings(vocab, vocab, alpha)
    [best, *_] = beam_search(Spoken(row), chosen, 2, NO_ENDS)
    texts = itertools.product(range(vocab), repeat=2)
    assert score(row, best.tokens, chosen) == pytest.approx(
        max(score(row, text, chosen) for text in texts)
    )


@given(st.integers(2, 9), st.integers(0, 999), st.integers(1, 8), st.sets(st.integers(0, 8)))
def test_one_beam_is_greedy(vocab, salt, count, ends):
    row, text = random_rows(vocab, salt), ()
    while len(text) < count and not (text and text[-1] in ends):
        now = row(text)
        text += (now.index(max(now)),)
    [best] = beam_search(Spoken(row), BeamSettings(1, 1), count, frozenset(ends))
    assert best.tokens == text
    assert best.finished == (text[-1] in ends)


@examples(200)
@given(
    st.integers(2, 6), st.integers(0, 999), st.integers(1, 6), st.integers(1, 5),
    st.integers(1, 5), st.sets(st.integers(0, 5), max_size=2),
)  # fmt: skip
def test_what_is_returned_is_consistent(vocab, salt, count, beams, expansions, ends):
    row, chosen = random_rows(vocab, salt), BeamSettings(beams, expansions)
    target = Spoken(row)
    found = beam_search(target, chosen, count, frozenset(ends))
    assert 1 <= len(found) <= beams
    assert len({beam.tokens for beam in found}) == len(found)
    scores = [score(row, beam.tokens, chosen) for beam in found]
    assert scores == sorted(scores, reverse=True)
    for beam in found:
        assert beam.log_prob == pytest.approx(
            score(row, beam.tokens, chosen) * chosen.penalty(len(beam.tokens))
        )
        assert not set(beam.tokens[:-1]) & ends
        assert beam.finished == (beam.tokens[-1] in ends)
        assert len(beam.tokens) == count or beam.finished
    assert target.asked <= count - 1
    assert beam_search(Spoken(row), chosen, count, frozenset(ends)) == found


def test_an_end_token_may_be_the_first_one():
    found = beam_search(
        Spoken(lambda text: [math.log(0.9), math.log(0.1)]), BeamSettings(1, 1), 9, frozenset({0})
    )
    assert found[0].tokens == (0,)


def test_equal_scores_are_ordered_by_their_tokens():
    found = beam_search(Spoken(lambda text: [math.log(0.25)] * 4), BeamSettings(3, 4), 2, NO_ENDS)
    assert [beam.tokens for beam in found] == [(0, 0), (0, 1), (0, 2)]


def test_impossible_tokens_never_live():
    found = beam_search(Spoken(lambda text: [0.0, -math.inf]), BeamSettings(4, 2), 3, NO_ENDS)
    assert [beam.tokens for beam in found] == [(0, 0, 0)]


@pytest.mark.parametrize(
    "bad",
    [
        {"num_beams": 0},
        {"expansions": 0},
        {"length_penalty": -1.0},
        {"length_penalty": 20.5},
        {"length_penalty_offset": math.nan},
    ],
)
def test_settings_are_refused_with_their_value(bad):
    [(name, value)] = bad.items()
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        BeamSettings(**bad)


@pytest.mark.parametrize(("beams", "chunk"), [(1, 64), (3, 4), (6, 64)])
def test_a_cached_model_gives_the_beams_of_one_without_cache(beams, chunk):
    model, prompt = tiny_model(), (3, 1, 4, 1, 5, 9, 2)
    cache = model.new_cache(16)

    def forward(feeds):
        cache.move_now()
        return model.forward(feeds, cache)

    chosen = BeamSettings(beams, 4)
    with CachedBeams(forward, cache, request(prompt, 12), beams, chunk) as target:
        found = beam_search(target, chosen, 12, frozenset({7}))
    assert cache.pool.num_free == 16

    def row(text):
        with CachedBeams(forward, cache, request((*prompt, *text), 1), 1, 64) as fresh:
            return fresh.start()

    expected = beam_search(Spoken(row), chosen, 12, frozenset({7}))
    assert [beam.tokens for beam in found] == [beam.tokens for beam in expected]
    assert [beam.log_prob for beam in found] == pytest.approx(
        [b.log_prob for b in expected], rel=1e-4
    )


def test_an_engine_searches_beside_its_requests(tiny_llama):
    prompt = "def read(path):"
    with LLM(tiny_llama, lookahead=LookaheadConfig(3, 4, 2), max_batch_size=8) as llm:
        streams = [llm.stream(prompt, SamplingParams(max_output_len=24)) for _ in range(2)]
        begun = [next(stream).token_ids for stream in streams]
        [greedy] = llm.beam_search(prompt, BeamSettings(1, 1), 24)
        wide = llm.beam_search(prompt, BeamSettings(6, 3, 0.0), 24)
        rest = [sum((chunk.token_ids for chunk in stream), ()) for stream in streams]
        assert {(*first, *more) for first, more in zip(begun, rest, strict=True)} == {
            greedy.output_ids
        }
        assert wide[0].log_prob >= greedy.log_prob - 1e-6  # true of this prompt, not of every one
        assert [beam.log_prob for beam in wide] == sorted((b.log_prob for b in wide), reverse=True)
        assert wide[0].text == llm.tokenizer.decode(wide[0].output_ids)
        with pytest.raises(UsageError, match="max_output_len"):
            llm.beam_search(prompt, max_output_len=0)


def test_beams_that_do_not_fit_are_refused_and_leave_nothing_behind():
    model = tiny_model()
    cache = model.new_cache(3)
    with pytest.raises(TrtlaError, match="no room for 4 beams of 40 tokens"):
        CachedBeams(lambda feeds: torch.empty(0), cache, request((1,) * 8, 32), 4, 64)
    assert cache.pool.num_free == 3
