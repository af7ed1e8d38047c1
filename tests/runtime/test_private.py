"""Private requests: others run as if there were none, and they as if there were no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trtla
from tests.support.toys import hash_rule, plain, request, ruled, run, tokens_of
from trtla import LLM, LookaheadConfig, SamplingParams, UsageError
from trtla.runtime.drafters.factory import _MOST_SPACES
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DraftRecorder, RecorderWatch
from trtla.settings.drafting import DrafterSettings, DraftOptions

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
VOCAB, COUNT = 300, 24
RULE = hash_rule(VOCAB, 7)  # texts that repeat little: what is drafted was seen in another one
PROMPT = [(7 * i + i * i) % VOCAB for i in range(70)]
TRIPLE = LookaheadConfig(3, 3, 2)
NGRAM = DrafterSettings(("ngram",), reset_in_between=False)
DRAFTERS = [
    pytest.param(DrafterSettings(), True, id="tree"),
    pytest.param(NGRAM, True, id="tree-of-ngrams"),
    pytest.param(NGRAM, False, id="ngrams"),
]


@pytest.fixture(params=["1", "0"], ids=["compiled", "plain"])
def _kinds(request, monkeypatch):
    monkeypatch.setenv("TRTLA_COMPILED", request.param)


def opened():
    """An executor that shares all it can; how many nodes it feeds does not depend on time."""
    executor, _ = ruled(RULE, VOCAB, TRIPLE, max_reused_len=160, options=DraftOptions(nodes=12))
    return executor


def answers(executor, drafter, adaptive, privates, first_id=0, space=0):
    """Ask the same at once, each privately or not: what was drafted, and the last outputs."""
    watch = RecorderWatch(DraftRecorder)
    asked = [
        replace(
            request(PROMPT, COUNT, request_id=first_id + i, adaptive=adaptive, drafter=drafter),
            private=private, watch=watch, space=space,
        )
        for i, private in enumerate(privates)
    ]  # fmt: skip
    outputs = run(executor, asked)
    assert all(tokens_of(one) == plain(RULE, PROMPT, COUNT) for one in outputs.values())
    drafts = {
        one.request.request_id - first_id: [step.draft for step in one.forwards]
        for one in watch.recorders
    }
    return drafts, [outputs[one.request_id][-1].stats for one in asked]


PRIVATE, SHARED, OWN, OTHER = (True, 0), (False, 0), (False, -1), (False, -2)
"""Requests, by whether they are private and their space."""


@pytest.mark.usefixtures("_kinds")
@pytest.mark.parametrize(("drafter", "adaptive"), DRAFTERS)
@pytest.mark.parametrize(
    ("before", "after", "shares"),
    [
        (PRIVATE, SHARED, False),
        (SHARED, PRIVATE, False),
        (OWN, OTHER, False),
        (OWN, OWN, True),
        pytest.param(SHARED, SHARED, True, marks=pytest.mark.deep),
        pytest.param(OWN, SHARED, False, marks=pytest.mark.deep),
        pytest.param(OWN, (True, -1), False, marks=pytest.mark.deep),
    ],
)
def test_requests_share_with_those_of_their_space_that_are_not_private(
    drafter, adaptive, before, after, shares
):
    """Else they draft as if there had been no other."""
    alone, _ = answers(opened(), drafter, adaptive, [False])
    executor, (private, space) = opened(), before
    if after == PRIVATE:
        executor.add_texts([plain(RULE, PROMPT, COUNT)])
    answers(executor, drafter, adaptive, [private], 0, space)
    kept = executor.kept_texts()
    assert before == SHARED or kept == []
    if private:
        assert executor._cache.pool._kept._by_block == {}
    found, (stats,) = answers(executor, drafter, adaptive, [after[0]], 1, after[1])
    assert (found == alone, stats.reused_tokens) == ((False, 64) if shares else (True, 0))
    if after == PRIVATE:
        assert executor.kept_texts() == kept


@pytest.mark.usefixtures("_kinds")
@pytest.mark.parametrize(("drafter", "adaptive"), DRAFTERS)
def test_private_requests_of_one_step_share_nothing(drafter, adaptive):
    """One planner chooses the nodes of trees that have different memories."""
    alone, _ = answers(opened(), drafter, adaptive, [False])
    found, stats = answers(opened(), drafter, adaptive, [True, False, True])
    assert found == dict.fromkeys(range(3), alone[0])
    assert [one.reused_tokens for one in stats] == [0, 0, 0]


def test_a_private_request_stays_private_when_all_is_made_anew():
    executor = opened()
    executor.submit(replace(request(PROMPT, COUNT, adaptive=True), private=True))
    for _ in range(4):
        executor.poll()
        executor._record.unfinished = True
    while executor.poll():
        pass
    assert executor.kept_texts() == []
    assert executor._cache.pool._kept._by_block == {}


def test_prompts_are_private_each_for_itself():
    params = SamplingParams(12)
    with LLM(SHIPPED, dtype="float32", block_reuse=True) as llm:
        prompts = [llm.tokenizer.encode("def add(first, second):\n    return first" * 5)] * 3
        one, *_ = expected = llm.generate(prompts, params, private=True)
        assert len(one.input_ids) > 32
        shared = llm.generate(prompts, params, private=[False, True, False])
        kept = llm.executor.call(lambda executor: executor.kept_texts())
        assert [c.output_ids for c in shared] == [c.output_ids for c in expected]
        assert kept == [one.output_ids] * 2
        assert [c.stats.reused_tokens for c in expected] == [0, 0, 0]
        assert [c.stats.reused_tokens > 0 for c in shared] == [False, False, True]


def test_an_executor_that_shares_blocks_of_all_prompts_refuses_private_ones():
    limits = ExecutorLimits(1, 99, 99, 99, VOCAB, TRIPLE, shares_blocks=True)
    limits.check(request(PROMPT, 3))
    with pytest.raises(UsageError, match="request 0 is private") as refusal:
        limits.check(replace(request(PROMPT, 3), private=True))
    assert "--kv-cache-enable-block-reuse" in (refusal.value.hint or "")


@pytest.mark.usefixtures("_kinds")
def test_texts_that_were_added_are_for_requests_without_a_space():
    """A space would need an index of them of its own."""
    drafter, executor = DrafterSettings(), opened()
    executor.add_texts([plain(RULE, PROMPT, COUNT)])
    alone, _ = answers(opened(), drafter, True, [False])
    assert answers(executor, drafter, True, [False], 1, -1)[0] == alone
    assert answers(executor, drafter, True, [False])[0] != alone


def test_the_spaces_that_were_not_asked_for_long_begin_anew():
    alone, _ = answers(opened(), NGRAM, False, [False])
    executor = opened()
    for number in range(_MOST_SPACES + 1):
        answers(executor, NGRAM, False, [False], number, -1 - number)
    assert len(executor._drafting.drafters._spaces) == _MOST_SPACES
    assert answers(executor, NGRAM, False, [False], 100, -2)[0] != alone
    assert answers(executor, NGRAM, False, [False], 101, -1)[0] == alone


def test_requests_of_one_step_wait_for_no_blocks_of_another_space():
    executor = opened()
    asked = [replace(request(PROMPT, COUNT, request_id=i), space=-1 - i % 2) for i in range(4)]
    outputs = run(executor, asked)
    assert [outputs[i][-1].stats.reused_tokens for i in range(4)] == [0, 0, 64, 64]
