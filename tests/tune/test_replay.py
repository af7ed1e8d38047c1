"""Replays equal real runs to the token and the fed token, or say that they do not know."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.tune.conftest import FOREVER, LIMIT, learnt
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.data.prompt_sets import load_sets
from trtla.runtime.draft import Draft
from trtla.settings.drafting import DrafterSettings
from trtla.tune.acceptance import Acceptance
from trtla.tune.measurements import Measurements
from trtla.tune.replay import Known, Steps, accepted
from trtla.tune.samples import Sample
from trtla.tune.text_only import prompt_lookup_steps

TEXTS = [text for one in load_sets(("code", "chat", "summarization"), (), 12) for text in one.texts]


@st.composite
def samples(draw, temperature=None):
    text = draw(st.sampled_from(TEXTS))
    start = draw(st.integers(0, 200))
    heat = draw(st.sampled_from([0.0, 0.7])) if temperature is None else temperature
    sampling = SamplingParams(draw(st.integers(2, 40)), heat, seed=draw(st.integers(0, 99)))
    return text[start : start + draw(st.integers(8, 400))] or text, sampling


def make(llm: LLM, drawn) -> Sample:
    text, sampling = drawn
    return Sample("code", 0, llm.tokenizer.encode(text), sampling)


def real(llm: LLM, sample: Sample, triple: LookaheadConfig, drafter=None) -> Steps:
    """A run's steps; what each of them fed adds up to what the executor counted."""
    before, fed, sizes = 0, 0, []
    for chunk in llm.stream([sample.prompt], sample.sampling, triple, drafter=drafter):
        fed, before = llm.stats().fed, fed
        sizes.append(fed - before)
        done = chunk.completion
    stats = done.stats
    sizes = tuple(sizes[1:])  # the prompt pass left out
    assert sum(sizes) == stats.fed - len(sample.prompt)
    return Steps(len(done.output_ids) - 1, stats.steps, sum(sizes), sizes)


@examples(30)
@given(samples(), st.data())
def test_what_a_run_makes_known_of_smaller_triples_is_what_they_do(llm, drawn, data):
    sample, size = make(llm, drawn), st.integers
    ngram = data.draw(size(2, 4))
    large = LookaheadConfig(data.draw(size(1, 5)), ngram, data.draw(size(1, 5)))
    small = LookaheadConfig(data.draw(size(1, large.window_size)), ngram, data.draw(size(1, 5)))
    with tempfile.TemporaryDirectory() as folder:
        acceptance = learnt(llm, [sample], Path(folder))
        acceptance.run(llm, [(large, sample)], FOREVER)
        acceptance.replay([small], FOREVER)
        found = acceptance.get(small, sample)
        assert acceptance.get(large, sample) == (real(llm, sample, large), "measured")
    if found is not None:
        assert found[0] == real(llm, sample, small)


@examples(15)
@given(samples(temperature=0.0), st.integers(1, 5))
def test_a_greedy_text_alone_tells_all_of_window_1_and_ngram_2(llm, drawn, guesses):
    sample, triple = make(llm, drawn), LookaheadConfig(1, 2, guesses)
    with tempfile.TemporaryDirectory() as folder:
        acceptance = learnt(llm, [sample], Path(folder))
        acceptance.replay([triple], FOREVER)
        assert acceptance.get(triple, sample) == (real(llm, sample, triple), "replayed")


@examples(15)
@given(samples(), st.integers(1, 10))
def test_prompt_lookup_is_replayed_from_the_text_alone(llm, drawn, gamma):
    sample = make(llm, drawn)
    settings_ = DrafterSettings(("prompt-lookup",), gamma=gamma)
    with tempfile.TemporaryDirectory() as folder:
        output = learnt(llm, [sample], Path(folder)).output(sample)
    found = prompt_lookup_steps(gamma, sample.prompt, output, sample.sampling.max_output_len)
    assert found == real(llm, sample, None, settings_)


def test_most_of_a_code_text_is_known_from_one_run(llm, tmp_path):
    many = [
        Sample("code", i, llm.tokenizer.encode(text), SamplingParams(48, seed=i))
        for i, text in enumerate(TEXTS[:4])
    ]
    acceptance = learnt(llm, many, tmp_path)
    acceptance.run(llm, [(LookaheadConfig(5, 3, 5), sample) for sample in many], FOREVER)
    smaller = [LookaheadConfig(w, 3, g) for w in (2, 3, 4, 5) for g in (2, 3, 4)]
    assert acceptance.replay(smaller, FOREVER) >= 12  # of 48


def test_a_window_nobody_has_asked_for_is_not_known(llm, tmp_path):
    sample = Sample("code", 0, llm.tokenizer.encode(TEXTS[0]), SamplingParams(24))
    acceptance = learnt(llm, [sample], tmp_path)
    triples = [LookaheadConfig(3, 4, 3), LookaheadConfig(2, 2, 2)]
    assert acceptance.replay(triples, FOREVER) == 0
    assert all(acceptance.get(triple, sample) is None for triple in triples)


def test_kept_runs_teach_the_same_again(llm, tmp_path):
    sample = Sample("code", 0, llm.tokenizer.encode(TEXTS[1]), SamplingParams(32))
    first = learnt(llm, [sample], tmp_path)
    first.run(llm, [(LIMIT, sample)], FOREVER)
    triples = [LookaheadConfig(w, 4, g) for w in range(1, 6) for g in range(1, 6)]
    assert first.replay(triples, FOREVER) > 0
    again = Acceptance([sample], Measurements(tmp_path, "key"))
    again.replay(triples, FOREVER)
    assert [again.get(t, sample) for t in triples] == [first.get(t, sample) for t in triples]


@pytest.mark.parametrize(
    ("ahead", "count"),
    [((), 0), ((9,), 0), ((1,), 1), ((1, 2), 2), ((1, 3, 4), 3), ((1, 3, 5), 2)],
)
def test_the_best_path_counts(ahead, count):
    draft = Draft((1, 2, 1, 3, 4), (0, 1, 0, 3, 4))
    assert accepted(draft, ahead) == count
    assert draft.tokens_to(5) == (1, 3, 4)


def test_the_window_is_never_accepted_but_answered():
    draft = Draft((7, 8, 1), (0, 1, 0), first_candidate=3, read=(0, 2))
    assert accepted(draft, (7, 8)) == 0
    known = Known((5, 7, 8, 6), greedy=True)
    assert known.read(0, draft) == [7, 6]  # both lie on the text
    assert known.read(1, draft) is None
    known.learn(1, draft, (8, 4))
    assert known.read(1, draft) == [8, 4]
    assert Known((5, 7, 8, 6), greedy=False).read(0, draft) is None  # draws are no argmax
