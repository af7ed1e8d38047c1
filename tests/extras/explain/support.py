"""Recorded runs of the toys: the real step loop, the real recorder, no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.support.toys import (
    Rule,
    Scores,
    greedy_scores,
    request,
    run,
    tokens_of,
    toy_executor,
    traced_drafter,
)
from trtla.extras.explain.record import RecordedRun, StepRecorder
from trtla.extras.explain.words import Style, Words
from trtla.llm.answer import Completion
from trtla.runtime.loop.executor import DrafterFactory
from trtla.runtime.request import RecorderWatch, Request
from trtla.settings.lookahead import LookaheadConfig


def unpainted(text: str, style: Style) -> str:
    """No colours."""
    return text


def recorded(
    rule: Rule,
    prompt: Sequence[int],
    triple: tuple[int, int, int],
    max_new: int,
    *,
    drafter: DrafterFactory = traced_drafter,
    vocab: int = 64,
    stop: Callable[[list[int]], bool] | None = None,
    **asked: object,
) -> tuple[RecordedRun, list[int]]:
    """A greedy run of a toy and the tokens that each of its forwards fed."""
    own = replace(request(prompt, max_new, **asked), stop_check=stop)
    return record(greedy_scores(rule, vocab), vocab, LookaheadConfig(*triple), own, drafter)


def record(
    scores: Scores,
    vocab: int,
    triple: LookaheadConfig,
    asked: Request,
    drafter: DrafterFactory = traced_drafter,
    **of_executor: Any,
) -> tuple[RecordedRun, list[int]]:
    """Any run of a toy and the tokens that each of its forwards fed."""
    watch = RecorderWatch(StepRecorder)
    executor, model = toy_executor(scores, vocab, triple, drafter=drafter, **of_executor)
    outputs = run(executor, [replace(asked, watch=watch)])[asked.request_id]
    last = outputs[-1]
    completion = Completion(
        0, None, asked.input_ids, tuple(tokens_of(outputs)), "", last.finish_reason,
        last.stats.lookahead, last.stats,
    )  # fmt: skip
    steps = tuple(watch.recorders[0].steps)
    return RecordedRun(steps, completion, len(asked.input_ids)), model.fed


def numbers(run: RecordedRun) -> Words:
    """Words of a run whose tokens are their own names."""
    return Words(lambda ids: "".join(f"{token}" for token in ids))
