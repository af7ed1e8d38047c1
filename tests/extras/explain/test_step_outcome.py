"""Why steps end: each reason reached by a run made for it, and what the sentence says."""

from __future__ import annotations

import pytest

from tests.extras.explain.support import numbers, record, recorded
from tests.support.toys import request, traced_drafter
from tests.support.traces import C4, M17, POS, T4_PROMPT
from trtla.extras.explain.step_outcome import busiest, outcome_of
from trtla.extras.explain.words import why
from trtla.runtime.draft import Draft, NoDrafter
from trtla.settings.lookahead import LookaheadConfig


def described(run, number):
    step = run.steps[number]
    outcome = outcome_of(run, step)
    return outcome, why(outcome, numbers(run))


POOL = "Nothing was found in the pool: the target added "


@pytest.mark.parametrize(
    ("run", "number", "found", "sentence"),
    [
        ((M17, [1, 4, 13], (5, 4, 5), 40), 0, ("prefill", (), 6),
         "The prefill drafts nothing: it adds the target's first token."),
        ((M17, [1, 4, 13], (5, 4, 5), 40), 1, ("nothing_drafted", (), 2), f"{POOL}'2'."),
        ((C4, [0, 1, 2, 3], (4, 4, 0), 12), 5, ("nothing_drafted", (), 1),
         "No candidate is verified with G = 0: the target added '1'."),
        ((C4, [0, 1], (1, 1, 0), 6), 2, ("nothing_drafted", (), 0),
         "Nothing was drafted: the target added '0'."),
        ((C4, [0, 1, 2, 3, 0, 1], (3, 3, 3), 12), 1, ("whole_candidate", (3, 0), 1),
         "The whole candidate was accepted, and the target added '1'."),
        ((M17, T4_PROMPT, (7, 7, 7), 48, 2), -1, ("end_id", (4, 13, 6, 2), None),
         "The text ends: '2' is an end token."),
        ((M17, [1, 4, 13], (5, 4, 5), 40, 14), -1, ("end_id", (), 14),
         f"{POOL}'14'. The text ends: '14' is an end token."),
        ((M17, T4_PROMPT, (7, 7, 7), 48, (13, 6)), -1, ("stop_words", (4, 13, 6), None),
         "The text ends: with '6' it has a stop string or a stop token."),
        ((M17, T4_PROMPT, (7, 7, 7), 12), -1, ("length", (4, 13), None),
         "The text ends: it has its 12 tokens."),
        ((M17, [1, 4], (3, 3, 3), 1), 0, ("length", (), 13),
         "The prefill drafts nothing: it adds the target's first token. The text ends: it has its "
         "1 token."),
    ],
)  # fmt: skip
def test_every_reason_has_its_sentence(run, number, found, sentence):
    """A run's fifth item is its end token, or two tokens whose text is a stop string."""
    *asked, end = run if len(run) == 5 else (*run, None)
    ends = {"end_ids": [end]} if isinstance(end, int) else {}
    stops = {"stop": lambda ids: ids[-2:] == [*end]} if isinstance(end, tuple) else {}
    outcome, why_it_ended = described(recorded(*asked, **ends, **stops)[0], number)
    assert (outcome.reason, outcome.accepted, outcome.added) == found
    assert why_it_ended == sentence


def test_first_mismatch_names_what_was_drafted_and_what_the_target_drew():
    run, _ = recorded(POS, [1, 2, 3, 4], (4, 3, 4), 30)
    numbers_of = [n for n in range(1, 29) if run.steps[n].draft.candidates]
    assert numbers_of
    for number in numbers_of:
        outcome, sentence = described(run, number)
        assert outcome.reason == "mismatch"
        assert outcome.accepted == ()
        assert outcome.added not in outcome.drafted
        assert {c.tokens[0] for c in outcome.candidates} == set(outcome.drafted)
        assert all(c.matched == 0 for c in outcome.candidates)
        assert f"the target drew '{outcome.added}'" in sentence
        assert all(f"'{token}'" in sentence for token in outcome.drafted)


def test_mismatch_behind_accepted_tokens():
    """The second token of the only candidate is wrong."""

    run, _ = recorded(C4, [0, 1], (3, 3, 3), 7, drafter=lambda *_: Chain((3, 0, 1)))
    outcome, sentence = described(run, 1)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("whole_candidate", (3, 0, 1), 2)
    run, _ = recorded(M17, [1, 4], (3, 3, 3), 7, drafter=lambda *_: Chain((6, 2, 9)))
    assert run.steps[0].committed == (13,)
    outcome, sentence = described(run, 1)
    assert (outcome.reason, outcome.accepted, outcome.added, outcome.drafted) == (
        "mismatch", (6, 2), 7, (9,),
    )  # fmt: skip
    assert sentence == "First mismatch: drafted '9', the target drew '7'."
    assert outcome.candidates[0].matched == 2


class Chain(NoDrafter):
    def __init__(self, tokens):
        self.tokens = tokens

    def propose(self, limit=None):
        return Draft.chain(self.tokens)


def test_only_the_last_step_has_the_reason_of_the_text():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    reasons = [outcome_of(run, step).reason for step in run.steps]
    assert reasons[-1] == "length"
    assert "length" not in reasons[:-1]


def test_the_busiest_step_accepted_the_most():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    most = max(len(outcome_of(run, step).accepted) for step in run.steps)
    step = busiest(run)
    assert len(outcome_of(run, step).accepted) == most == 6
    assert step.number == 10
    assert step.window.full
    assert busiest(recorded(M17, [1, 4], (3, 3, 3), 1)[0]).number == 0


def test_where_candidates_came_from():
    run, _ = recorded(C4, [0, 1, 2, 3, 0, 1], (3, 3, 3), 12)
    assert described(run, 1)[0].candidates[0].sources == ("prompt",)
    run, _ = recorded(M17, [1, 4, 13], (5, 4, 5), 40)
    sources = {s for step in run.steps for c in outcome_of(run, step).candidates for s in c.sources}
    assert sources == {"window", "output"}
    for step in run.steps:
        for candidate in outcome_of(run, step).candidates:
            gram = (run.text_before(step)[-1], *candidate.tokens)
            seen = any(gram in earlier.harvest for earlier in run.steps[: step.number])
            assert ("window" in candidate.sources) == seen


@pytest.mark.parametrize("greedy", [True, False])
def test_the_draws_of_a_sampled_run_are_what_it_committed(greedy):
    def scores(text):
        return [8.0 * (text[-1] == i) for i in range(4)]

    asked = request([1, 1, 1], 20, temperature=0.0 if greedy else 1.0, seed=4)
    run, _ = record(scores, 4, LookaheadConfig(3, 3, 3), asked, traced_drafter)
    for step in run.steps:
        outcome = outcome_of(run, step)
        added = () if outcome.added is None else (outcome.added,)
        assert outcome.accepted + added == step.committed
