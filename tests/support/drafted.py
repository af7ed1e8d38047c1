"""What holds for every drafter of chains, checked with any of them behind the real step loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from tests.support.real_models import folder_and_model
from tests.support.toys import Rule, greedy_scores, plain, request, run, tokens_of, toy_executor
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.draft import Drafter
from trtla.runtime.loop.executor import DrafterFactory
from trtla.runtime.request import Request
from trtla.settings.lookahead import AUTOREGRESSIVE


def one_per_request(make: Callable[[Request], Drafter]) -> DrafterFactory:
    """A factory that looks at no triple."""
    return lambda _, request: make(request)


def assert_within_limits(
    rule: Rule,
    vocab: int,
    prompt: Sequence[int],
    count: int,
    gamma: int,
    drafter: DrafterFactory,
    end_ids: Collection[int] = (),
) -> None:
    """Plain decoding's greedy text, in a cache without room for one token more than it."""
    text = plain(rule, prompt, count)
    ends = [place for place, token in enumerate(text) if token in end_ids]
    text = text[: ends[0] + 1] if ends else text
    executor, model = toy_executor(
        greedy_scores(rule, vocab),
        vocab,
        AUTOREGRESSIVE,
        drafter=drafter,
        max_batch_size=1,
        max_text_len=len(prompt) + count,
    )
    outputs = run(executor, [request(prompt, count, end_ids=sorted(end_ids))])[0]
    stats, lengths = outputs[-1].stats, outputs[-1].stats.step_lengths
    assert tokens_of(outputs) == text
    assert outputs[-1].finish_reason == ("end_id" if ends else "length")
    assert stats.steps == len(lengths) - 1 == len(model.fed) - 1
    assert 0 <= stats.accepted <= stats.drafted <= gamma * stats.steps
    assert stats.drafted == sum(fed - 1 for fed in model.fed[1:])
    # An end token among the drafts ends the step before the token that the target drew.
    assert len(text) - 1 - stats.steps <= stats.accepted <= len(text) - stats.steps
    assert ends or len(text) == 1 + stats.steps + stats.accepted
    done = 0
    for length, fed in zip(lengths[:-1], model.fed[1:], strict=True):
        done += length
        assert fed <= count - done  # all drafts and one token more could become output


def real_model_says_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, heat: float, drafter: DrafterFactory
) -> None:
    """A small model in float32, with drafts and without."""
    if not compiled:
        monkeypatch.setenv("TRTLA_COMPILED", "0")
    with LLM(
        folder_and_model("mha")[0], lookahead=LookaheadConfig(1, 1, 0), dtype="float32"
    ) as llm:
        llm.end_ids = frozenset()
        prompts = [[5, 9, 2, 5, 9], [3], [7, 7, 1, 2, 7, 7, 1]]
        params = [
            SamplingParams(max_output_len=40, temperature=heat, top_p=0.9, seed=i) for i in range(3)
        ]
        expected = llm.generate(prompts, params)
        monkeypatch.setattr(llm._executor._drafting, "drafters", drafter)
        drafted = llm.generate(prompts, params)
    assert [c.output_ids for c in drafted] == [c.output_ids for c in expected]
    assert sum(c.stats.accepted for c in drafted) > 0
    assert all(c.stats.drafted == 0 for c in expected)
