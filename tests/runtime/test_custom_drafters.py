"""Drafters of the user's own: any of them leaves the text alone and fails one request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtla import LLM, AsyncLLM, SamplingParams, TrtlaError, UsageError
from trtla.settings.drafting import DrafterSettings

PROMPTS = [
    *("import os\nimport sys\nimport os\nimport sys\n", "def add(a, b):\n", "class A:\n    def"),
    *("for i in range(10):\n", "if x is None:\n", "x = [1, 2, 3]\n", "import re\n", "return"),
]
GREEDY = SamplingParams(max_tokens=40)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.9, seed=7)


class LastTime:
    """What followed the last token when it came before."""

    def propose(self, ids: list[int]) -> list[int]:
        before = [place for place, token in enumerate(ids[:-1]) if token == ids[-1]]
        return ids[before[-1] + 1 :] if before else []


class Random:
    def propose(self, ids: list[int]) -> list[int]:
        ids.clear()  # it is a copy
        return [random.randrange(100) for _ in range(9)]


class Endless:
    def propose(self, ids: list[int]) -> Iterator[int]:
        return count()


class Array(LastTime):
    def propose(self, ids: list[int]) -> Any:
        return np.array(super().propose(ids), np.int64)


class Watching(LastTime):
    """One of each request, which sees its text piece by piece."""

    made: list[Watching] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.made.append(self)

    def observe(self, ids: list[int]) -> None:
        self.seen += ids

    def propose(self, ids: list[int]) -> list[int]:
        assert ids == self.seen
        return super().propose(ids)


class Returns:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def propose(self, ids: list[int]) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class Picky(LastTime):
    def propose(self, ids: list[int]) -> list[int]:
        if ids[:2] == [10, 10]:
            raise ValueError("I do not like this text")
        return super().propose(ids)


def decoded(llm: LLM, sampling: SamplingParams, **how: Any) -> list[tuple[int, ...]]:
    return [one.token_ids for one in llm.generate(PROMPTS, sampling, **how)]


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> list[list[tuple[int, ...]]]:
    with LLM(tiny_llama, drafter="none") as llm:
        return [decoded(llm, sampling) for sampling in (GREEDY, SAMPLED)]


@pytest.mark.parametrize(
    "drafter",
    [LastTime, LastTime(), lambda: LastTime(), Random, Endless, Array, Watching,
     ["lookahead", LastTime], [LastTime, "ngram", Random()]],
)  # fmt: skip
def test_the_text_is_that_of_plain_decoding(tiny_llama: Path, plain: Any, drafter: Any) -> None:
    with LLM(tiny_llama, drafter=drafter, max_batch_size=8) as llm:
        assert [decoded(llm, sampling) for sampling in (GREEDY, SAMPLED)] == plain
        assert decoded(llm, GREEDY, lookahead="auto") == plain[0]


def test_a_good_one_saves_steps_and_a_draft_is_cut_to_gamma(tiny_llama: Path) -> None:
    name = f"{__name__}:LastTime"
    settings = DrafterSettings((name,), gamma=2)
    with LLM(tiny_llama, drafter=settings, custom_drafters=[LastTime]) as llm:
        (done,) = llm.generate(PROMPTS[0], GREEDY)
        (more,) = llm.generate(PROMPTS[0], GREEDY, drafter=DrafterSettings((name,), gamma=8))
    assert done.stats.drafter == name
    assert more.stats.steps < done.stats.steps < len(done.token_ids) - 1
    assert max(done.stats.accepted_lengths or ()) == 2


def test_each_request_has_one_of_its_own_that_sees_the_whole_text(tiny_llama: Path) -> None:
    Watching.made.clear()
    with LLM(tiny_llama, drafter=Watching) as llm:
        done = llm.generate(PROMPTS[:3], GREEDY)
    assert len(Watching.made) == 3
    texts = [[*one.input_ids, *one.token_ids] for one in done]
    for one in Watching.made:
        assert any(one.seen == text[: len(one.seen)] for text in texts)


def test_its_tokens_are_counted_by_its_name_in_the_tree(tiny_llama: Path) -> None:
    with LLM(tiny_llama, drafter=LastTime, lookahead="auto") as llm:
        (done,) = llm.generate(PROMPTS[0], GREEDY)
    sources = done.stats.sources
    assert sources is not None
    assert list(sources) == [f"{__name__}:LastTime"]
    assert sum(sources[f"{__name__}:LastTime"].accepted) == done.stats.accepted > 0


def nothing() -> Any:
    """Make no drafter."""


def test_no_line_is_named_that_is_not_the_drafters(tiny_llama: Path) -> None:
    with LLM(tiny_llama, drafter=nothing) as llm, pytest.raises(TrtlaError) as refusal:
        llm.generate(PROMPTS[0], GREEDY)
    assert refusal.value.message.endswith("'NoneType' object has no attribute 'propose'")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.5], "proposed 1.5, not a token id"),
        ([[1, 2]], r"proposed \[1, 2\], not a token id"),
        (np.ones((2, 2)), r"proposed array\(.*\), not a token id"),
        ("text", "proposed 'text', not token ids"),
        (None, "proposed None, not token ids"),
        ([3, -1], "proposed token -1, outside the vocabulary of"),
        ([10**9], "proposed token 1000000000, outside the vocabulary of"),
        (SystemExit(3), "raised SystemExit: 3"),
        (KeyError(5), r"raised KeyError: 5 \(test_custom_drafters.py, line \d+\)"),
    ],
)
@pytest.mark.parametrize("beside", [(), ("lookahead",)])
def test_rubbish_is_refused_in_a_sentence(
    tiny_llama: Path, value: Any, words: str, beside: Iterable[str]
) -> None:
    with LLM(tiny_llama, drafter=[*beside, Returns(value)]) as llm:
        start = f"prompt 0 failed: its drafter {__name__}:Returns "
        with pytest.raises(TrtlaError, match=start + words) as refusal:
            llm.generate(PROMPTS[0], SamplingParams(max_tokens=40))
        assert "decode with drafter none" in str(refusal.value)
        assert llm.generate("import os", GREEDY, drafter="none")[0].text


@pytest.mark.parametrize("drafter", [Picky, ["lookahead", Picky()]])
def test_an_exception_fails_its_request_alone(tiny_llama: Path, plain: Any, drafter: Any) -> None:
    async def ask() -> list[Any]:
        async with AsyncLLM(tiny_llama, drafter=drafter, max_batch_size=9) as llm:
            asked: list[Any] = [*PROMPTS, [10, 10, 5]]
            jobs = [llm.generate(prompt, GREEDY) for prompt in asked]
            return await asyncio.gather(*jobs, return_exceptions=True)

    *done, failed = asyncio.run(ask())
    assert [one.token_ids for (one,) in done] == plain[0]
    assert f"its drafter {__name__}:Picky raised ValueError: I do not like" in failed.message


@pytest.mark.parametrize(
    ("drafter", "words", "hint"),
    [
        (int, "the drafter builtins:int has no propose", "an object with propose"),
        (lambda ids: ids, "without arguments: missing a required argument: 'ids'", "an object"),
        ([LastTime, LastTime()], "LastTime is named twice", "once"),
        ("nowhere_at_all:Mine", "cannot be imported: ModuleNotFoundError", "file.py:Name"),
        ("nowhere.py:Mine", "cannot be imported: FileNotFoundError", "file.py:Name"),
        ("json:loadz", "json has no loadz", "did you mean load"),
        ("json:decoder", "json:decoder has no propose", "an object with propose"),
    ],
)
def test_what_cannot_draft_is_refused_before_the_model_is_loaded(
    tiny_llama: Path, drafter: Any, words: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        LLM(tiny_llama, drafter=drafter)
    assert hint in str(refusal.value.hint)


def test_two_of_one_name_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match="two drafters are named"):
        LLM(tiny_llama, custom_drafters=[Returns([1]), Returns([2])])


def test_a_request_names_those_that_the_model_was_opened_with(tiny_llama: Path) -> None:
    with LLM(tiny_llama, custom_drafters=[LastTime]) as llm:
        assert llm.generate("a", GREEDY, drafter=f"{__name__}:LastTime")[0].token_ids
        with pytest.raises(UsageError, match="json:loads, which the model was not opened with"):
            llm.generate("a", GREEDY, drafter="json:loads")


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [{"tp_size": 2}, {"lookahead_parallel": 2}])
def test_with_ranks_the_first_process_drafts(tiny_llama: Path, ranks: dict[str, Any]) -> None:
    class Local(LastTime):
        """One that no other process can import."""

    with LLM(tiny_llama, drafter=["lookahead", Local], **ranks) as llm:
        assert decoded(llm, SAMPLED) == decoded(llm, SAMPLED, drafter="none")
