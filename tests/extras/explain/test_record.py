"""What is recorded is what happened: the exact traces, and texts that recording does not change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.extras.explain.support import record, recorded
from tests.support.cases import cases
from tests.support.examples import examples
from tests.support.mixed import mixed_executor
from tests.support.toys import greedy_scores, hash_scores, request, run, tokens_of, toy_executor
from tests.support.traces import CASES, DEEP_COMMITS, DEEP_GUESSES, FIB7, M17, T4_PROMPT
from trtla import LLM, DrafterSettings, LookaheadConfig, SamplingParams, UsageError
from trtla.extras.explain.record import StepRecorder, record_run
from trtla.extras.explain.step_outcome import outcome_of, paths
from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.drafters.lookup import NgramDrafter, PromptLookupDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import RecorderWatch
from trtla.settings.drafting import DraftOptions

# forward of the published trace: (levels, new level, harvested n-grams)
DEEP_WINDOWS = {
    4: ([(1, 2, 1), (2, 3, 3), (3, 5, 4)], (5, 1, 0), [(1, 2, 3, 5), (2, 3, 5, 1), (1, 3, 4, 0)]),
    5: ([(6, 3, 3), (3, 5, 4), (5, 1, 0)], (1, 6, 4), [(6, 3, 5, 1), (3, 5, 1, 6), (3, 4, 0, 4)]),
    8: ([(6, 6, 4), (6, 0, 4), (0, 6, 1)], (6, 6, 5), [(6, 6, 0, 6), (6, 0, 6, 6), (4, 4, 1, 5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_exact_traces(name):
    (rule, prompt, triple, count), text, lengths, fed = CASES[name]
    told, model_fed = recorded(rule, prompt, triple, count)
    assert list(told.completion.output_ids) == text
    assert [step.number for step in told.steps] == list(range(len(told.steps)))
    counts = [len(step.committed) for step in told.steps]
    assert counts == told.completion.stats.step_lengths
    assert [step.draft.size for step in told.steps[1:]] == model_fed[1:]
    assert lengths in (counts, len(counts))
    if fed is not None:
        assert [step.draft.size for step in told.steps[1:]] == fed[1:]


def test_windows_harvests_and_candidates_are_those_of_the_deep_trace():
    told, _ = recorded(FIB7, [1, 1, 2], (3, 4, 2), 12)
    assert list(told.completion.output_ids) == DEEP_COMMITS
    guesses = {
        step.number + 1: [tuple(step.draft.tokens[n - 1] for n in path) for path in found]
        for step in told.steps
        if (found := paths(step.draft))
    }
    assert guesses == DEEP_GUESSES
    assert {s.number + 1: list(s.candidates) for s in told.steps if s.candidates} == DEEP_GUESSES
    for forward, (levels, new, harvest) in DEEP_WINDOWS.items():
        step = told.steps[forward - 1]
        assert step.window is not None
        assert step.window.full
        assert list(step.window.levels) == levels
        assert step.observed == new
        assert list(step.harvest) == harvest


def test_the_window_rolls_by_one_level_from_step_to_step():
    told, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    assert [len(step.window.levels) for step in told.steps[1:8]] == [1, 2, 3, 4, 5, 6, 6]
    for before, after in zip(told.steps, told.steps[1:], strict=False):
        assert after.window == before.window_after
    full = [step for step in told.steps[1:] if step.window.full]
    for step in full:
        after = step.window_after
        assert after.levels[-1] == step.observed
        assert after.levels[1:-1] == step.window.levels[2:]
        assert after.levels[0][1:] == step.window.levels[1][1:]
        assert after.levels[0][0] == step.committed[-1]


def test_position_and_text_of_the_input_token():
    told, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    text = [*T4_PROMPT, *told.completion.output_ids]
    for step in told.steps[1:]:
        assert told.text_before(step)[-1] == text[told.position(step)]
        assert len(told.text_before(step)) == told.position(step) + 1


options = st.builds(
    DraftOptions, cells=st.sampled_from(["greedy", "drawn"]), reference=st.booleans()
)


@examples(120)
@given(cases(), options, st.sampled_from([0.0, 0.8]), st.integers(0, 99))
def test_a_recorded_run_is_the_run_without_recording(case, own, heat, salt):
    rule, vocab, prompt, numbers, count, _ = case
    triple = LookaheadConfig(*numbers)
    scores = hash_scores(vocab, salt) if heat else greedy_scores(rule, vocab)
    asked = request(prompt, count, temperature=heat, seed=salt)
    drafter = partial(lookahead_drafter, options=own)
    executor, model = toy_executor(scores, vocab, triple, drafter=drafter)
    plain = run(executor, [asked])[0]
    told, fed = record(scores, vocab, triple, asked, drafter)
    assert list(told.completion.output_ids) == tokens_of(plain)
    assert fed == model.fed
    assert told.completion.stats == plain[-1].stats
    accepted = [outcome_of(told, step).accepted for step in told.steps]
    assert sum(map(len, accepted)) == plain[-1].stats.accepted
    assert sum(len(s.draft.candidates) for s in told.steps) == plain[-1].stats.drafted


NGRAM = DrafterSettings(("ngram",), gamma=3)
OTHERS = {
    "ngram": lambda triple, asked: NgramDrafter(NGRAM, asked, 8),
    "prompt-lookup": lambda triple, asked: PromptLookupDrafter(3, asked.input_ids, 40),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_drafters_are_recorded_as_well(name):
    scores, triple, asked = hash_scores(8, 5), LookaheadConfig(3, 3, 2), request([1, 2, 1, 2], 40)
    executor, model = toy_executor(scores, 8, triple, drafter=OTHERS[name])
    plain = run(executor, [asked])[0]
    told, fed = record(scores, 8, triple, asked, OTHERS[name])
    assert list(told.completion.output_ids) == tokens_of(plain)
    assert fed == model.fed
    assert told.completion.stats == plain[-1].stats
    assert not any(step.window for step in told.steps)
    assert (
        sum(len(outcome_of(told, step).accepted) for step in told.steps)
        == plain[-1].stats.accepted
        > 0
    )


def test_llm_records_a_real_model(model_folder):
    sampling = SamplingParams(max_output_len=24, temperature=0.7, seed=3)
    with LLM(model_folder, lookahead=LookaheadConfig(4, 3, 4)) as llm:
        told = record_run(llm, [5, 6, 5, 6, 5], sampling)
        (plain,) = llm.generate([5, 6, 5, 6, 5], sampling)
    assert told.completion.output_ids == plain.output_ids
    assert len(told.steps) == plain.stats.steps + 1
    joined = [token for step in told.steps for token in step.committed]
    assert tuple(joined) == plain.output_ids


def test_an_executor_that_does_not_report_its_steps_refuses_to_be_watched():
    limits = ExecutorLimits(1, 8, 16, 64, 32, LookaheadConfig(2, 2, 2), fixed_triples=True)
    asked = request([1, 2], 4)
    limits.check(asked)
    with pytest.raises(UsageError, match="does not report what it drafts") as refused:
        limits.check(replace(asked, watch=StepRecorder))
    assert "--backend torch" in str(refused.value.hint)


def test_a_named_triple_in_a_list_is_run_as_it_is() -> None:
    """Its window and its candidates are fed in every step, and what the others propose besides."""
    triple, steps = LookaheadConfig(3, 3, 2), []
    for names in (("lookahead",), ("prompt-lookup", "lookahead")):
        watch = RecorderWatch(StepRecorder)
        executor, _, _ = mixed_executor(triple)
        asked = request([1, 2, 3, 1, 2, 3, 1], 30, drafter=DrafterSettings(names), seed=1)
        run(executor, [replace(asked, watch=watch)])
        steps.append(watch.recorders[0].steps)
    alone, listed = steps
    assert all(step.window and step.observed for step in (*alone[1:], *listed[1:]))
    assert listed[1].window == alone[1].window
    assert [step.window_after for step in listed[:2]] == [step.window_after for step in alone[:2]]
    for step in listed[1:]:
        fed = {step.draft.tokens_to(node) for node in range(1, step.draft.size)}
        assert all(branch[: len(path)] in fed for branch in step.candidates for path in [branch])
    assert any("chain" in s.draft.proposers(range(1, s.draft.size)) for s in listed[1:])
