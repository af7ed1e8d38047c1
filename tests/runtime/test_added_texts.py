"""Texts that an executor gets to draft from: checked, passed on, kept when it is reset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.support.toys import hash_rule, plain, request, ruled, run, tokens_of
from trtla import LookaheadConfig, UsageError
from trtla.runtime.draft import Drafter, NoDrafter
from trtla.runtime.request import DrafterFactory, Request

RULE = hash_rule(7, 3)


class Keeping(DrafterFactory):
    """Keeps texts until it is reset."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, ...]] = []
        self.fails = False

    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        return NoDrafter()

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:
        for text in texts:
            self.kept.append(tuple(text))
            if self.fails:
                self.fails = False
                raise KeyboardInterrupt

    def texts(self) -> list[tuple[int, ...]]:
        return self.kept

    def reset(self) -> None:
        self.kept = []


def test_texts_stay_when_the_executor_begins_anew() -> None:
    drafters = Keeping()
    executor, _ = ruled(RULE, 7, (3, 3, 3), drafter=drafters)
    executor.add_texts([[1, 2, 3], (4, 5)])
    assert executor.kept_texts() == [(1, 2, 3), (4, 5)]
    executor.submit(request([1, 2], 20))
    executor.poll()
    executor._record.unfinished = True
    (again,) = executor.poll()
    assert again.start == 0
    assert executor.kept_texts() == [(1, 2, 3), (4, 5)]


def test_texts_that_an_interrupt_cut_off_are_added_once() -> None:
    drafters = Keeping()
    executor, _ = ruled(RULE, 7, (3, 3, 3), drafter=drafters)
    drafters.fails = True
    with pytest.raises(KeyboardInterrupt):
        executor.add_texts([[1, 2], [3]])
    outputs = run(executor, [request([1, 2], 20)])[0]
    assert tokens_of(outputs) == plain(RULE, [1, 2], 20)
    assert executor.kept_texts() == [(1, 2), (3,)]


def test_ids_of_another_vocabulary_are_refused() -> None:
    drafters = Keeping()
    executor, _ = ruled(RULE, 7, (3, 3, 3), drafter=drafters)
    with pytest.raises(UsageError, match="a text to draft from holds token id 7"):
        executor.add_texts([[1], [6, 7]])
    assert executor.kept_texts() == []
