"""Why steps end: each reason reached by a run made for it, and what the sentence says."""

from __future__ import annotations

import pytest

from tests.support.recorded import numbers, record, recorded
from tests.support.toys import request, traced_drafter
from tests.support.traces import C4, M17, POS, T4_PROMPT
from trtla.explain.step_outcome import busiest, outcome_of
from trtla.explain.words import why
from trtla.runtime.draft import Draft, NoDrafter
from trtla.settings.lookahead import LookaheadConfig


def described(run, number):
    step = run.steps[number]
    outcome = outcome_of(run, step)
    return outcome, why(outcome, numbers(run))


def test_prompt_pass():
    run, _ = recorded(M17, [1, 4, 13], (5, 4, 5), 40)
    outcome, sentence = described(run, 0)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("prompt_pass", (), 6)
    assert "first token" in sentence


def test_nothing_found_in_the_pool():
    run, _ = recorded(M17, [1, 4, 13], (5, 4, 5), 40)
    outcome, sentence = described(run, 1)
    assert (outcome.reason, outcome.candidates, outcome.added) == ("nothing_drafted", (), 2)
    assert sentence == "Nothing was found in the pool: the target added '2'."


def test_no_verification_set():
    run, _ = recorded(C4, [0, 1, 2, 3], (4, 4, 0), 12)
    outcome, sentence = described(run, 5)
    assert outcome.reason == "nothing_drafted"
    assert "G = 0" in sentence


def test_nothing_drafted_without_a_drafter():
    run, _ = recorded(C4, [0, 1], (1, 1, 0), 6)
    outcome, sentence = described(run, 2)
    assert outcome.reason == "nothing_drafted"
    assert sentence == "Nothing was drafted: the target added '0'."


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

    class Fixed(NoDrafter):
        def propose(self, limit=None):
            return Draft.chain((3, 0, 1))

    run, _ = recorded(C4, [0, 1], (3, 3, 3), 7, drafter=lambda *_: Fixed())
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


def test_whole_candidate():
    run, _ = recorded(C4, [0, 1, 2, 3, 0, 1], (3, 3, 3), 12)
    outcome, sentence = described(run, 1)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("whole_candidate", (3, 0), 1)
    assert sentence == "The whole candidate was accepted, and the target added '1'."
    assert outcome.candidates[0].sources == ("prompt",)


def test_end_token_inside_a_candidate():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48, end_ids=[2])
    outcome, sentence = described(run, -1)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("end_id", (4, 13, 6, 2), None)
    assert sentence == "The text ends: '2' is an end token."


def test_end_token_drawn_by_the_target():
    run, _ = recorded(M17, [1, 4, 13], (5, 4, 5), 40, end_ids=[14])
    outcome, sentence = described(run, -1)
    assert (outcome.reason, outcome.added) == ("end_id", 14)
    assert sentence.endswith("The text ends: '14' is an end token.")
    assert sentence.startswith("Nothing was found in the pool: the target added '14'.")


def test_stop_string():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48, stop=lambda ids: ids[-2:] == [13, 6])
    outcome, sentence = described(run, -1)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("stop_words", (4, 13, 6), None)
    assert "with '6' it holds a stop string" in sentence


def test_length():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 12)
    outcome, sentence = described(run, -1)
    assert (outcome.reason, outcome.accepted, outcome.added) == ("length", (4, 13), None)
    assert sentence == "The text ends: it has its 12 tokens."


def test_only_the_last_step_has_the_reason_of_the_text():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    reasons = [outcome_of(run, step).reason for step in run.steps]
    assert reasons[-1] == "length"
    assert "length" not in reasons[:-1]


def test_one_step_alone_ends_with_its_length():
    run, _ = recorded(M17, [1, 4], (3, 3, 3), 1)
    outcome, _ = described(run, 0)
    assert (outcome.reason, outcome.added) == ("length", 13)
    assert busiest(run).number == 0


def test_the_busiest_step_accepted_the_most():
    run, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    most = max(len(outcome_of(run, step).accepted) for step in run.steps)
    step = busiest(run)
    assert len(outcome_of(run, step).accepted) == most == 6
    assert step.number == 10
    assert step.window.full


def test_where_candidates_came_from():
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
