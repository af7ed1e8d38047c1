"""Decoding: the batch is full, memory is bounded, and one bad line or step ends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.extras.batch.support import SHIPPED, ask, batch, chat, texts, write
from trtla import LLM
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.errors import TrtlaError
from trtla.extras.batch.journal import Record
from trtla.extras.batch.lines import LineRequest, read_lines
from trtla.extras.batch.tasks import LineShare, tasks
from trtla.extras.batch.work import Decoding, Labelling

LABELLING = Labelling("job", 7, "tiny")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SHIPPED, max_batch_size=2) as one:
        yield one


def asked(*lines: dict[str, Any]) -> list[LineRequest]:
    kinds = {True: ChatBody, False: CompletionBody}
    return [
        LineRequest(i, one["custom_id"], kinds["messages" in one["body"]](**one["body"]))
        for i, one in enumerate(lines, 1)
    ]


def answer(record: Record) -> dict[str, Any]:
    return json.loads(record.data)["response"]


def test_lines_are_taken_when_there_is_room(llm: LLM) -> None:
    taken = 0

    def lines() -> Iterator[LineRequest]:
        nonlocal taken
        for one in asked(*(ask(f"{i}", f"x{i} = ", n=1 + i % 3) for i in range(60))):
            taken += 1
            yield one

    for done, _ in enumerate(Decoding(llm, LABELLING, print).records(lines())):
        assert taken - done <= 4 * 2 + 3
    assert taken == 60
    assert llm.stats().max_in_flight == 2


def test_an_answer_is_that_of_the_line_alone(llm: LLM) -> None:
    lines = asked(*(ask(f"{i}", f"def f{i}(", temperature=1.0, n=2) for i in range(6)), chat("c"))
    together = {one.number: one.data for one in Decoding(llm, LABELLING, print).records(lines)}
    for one in lines:
        (alone,) = Decoding(llm, LABELLING, print).records([one])
        assert alone.data == together[one.number]


def test_a_seed_is_the_custom_ids_where_a_body_has_none(llm: LLM) -> None:
    bodies = [ask(name, "x", temperature=1.0, max_tokens=20) for name in ("a", "b")]
    bodies.append(ask("c", "x", temperature=1.0, max_tokens=20, seed=1))
    a, b, c = (answer(one)["body"]["choices"] for one in _ordered(llm, bodies))
    assert a != b
    again = [ask("a", "x", temperature=1.0, max_tokens=20), {**bodies[2], "custom_id": "other"}]
    assert [answer(one)["body"]["choices"] for one in _ordered(llm, again)] == [a, c]


def _ordered(llm: LLM, bodies: list[dict[str, Any]]) -> list[Record]:
    found = Decoding(llm, LABELLING, print).records(asked(*bodies))
    return sorted(found, key=lambda one: one.number)


def test_usage_has_what_is_the_same_again_and_metrics_what_is_asked(llm: LLM) -> None:
    plain, more = _ordered(llm, [ask("a"), ask("b", metrics=True)])
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert answer(plain)["body"]["usage"] == usage
    assert (plain.prompt_tokens, plain.output_tokens) == (3, 4)
    assert "metrics" not in answer(plain)["body"]
    assert answer(more)["body"]["metrics"]["steps"] >= 1


def test_a_step_that_fails_is_done_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = Decoding(llm, LABELLING, print).records(asked(ask("a", max_tokens=20)))
    log = list[str]()
    with failing(llm, monkeypatch, range(1, 3)):
        (record,) = Decoding(llm, LABELLING, log.append).records(asked(ask("a", max_tokens=20)))
    assert record.data == expected.data
    assert log[-1] == "a step failed (2 in a row): RuntimeError: out of luck"


def test_steps_that_always_fail_end_the_job(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed before is sent once more after each: that is no success."""
    log = list[str]()
    with failing(llm, monkeypatch, range(4, 100)), pytest.raises(RuntimeError, match="out of luck"):
        list(Decoding(llm, LABELLING, log.append).records(asked(ask("a", max_tokens=90))))
    assert len(log) == 3
    (record,) = Decoding(llm, LABELLING, print).records(asked(ask("a")))
    assert not record.failed


@contextmanager
def failing(llm: LLM, monkeypatch: pytest.MonkeyPatch, which: range) -> Iterator[None]:
    """Forwards that fail, by their number."""
    executor, calls = llm._executor, count()
    real = executor._stepper.forward

    def forward(feeds: Any) -> Any:
        if next(calls) in which:
            raise RuntimeError("out of luck")
        return real(feeds)

    with monkeypatch.context() as patch:
        patch.setattr(executor._stepper, "forward", forward)
        yield


def test_a_choice_that_fails_fails_its_line_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtla.extras.batch import work

    real = work.Writer.add

    def add(self: Any, chunk: Any) -> Any:
        if self.id.endswith(LABELLING.labels(lines[1]).key) and chunk.choice == 1:
            raise TrtlaError("it is lost", "ask again")
        return real(self, chunk)

    monkeypatch.setattr(work.Writer, "add", add)
    lines = asked(ask("a"), ask("b", n=3), ask("c"))
    records = sorted(Decoding(llm, LABELLING, print).records(lines), key=lambda one: one.number)
    assert [one.failed for one in records] == [False, True, False]
    assert answer(records[1])["status_code"] == 500
    assert answer(records[1])["body"]["error"]["message"] == "it is lost; ask again"


def test_tasks_of_other_processes_are_of_the_input_as_it_was(llm: LLM, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [ask("a"), ask("b"), ask("c"), ask("d"), ask("e")])
    lines = read_lines(source)
    share = LineShare(source, lines.digest, LABELLING)
    here = Decoding(llm, LABELLING, print).records(map(lines.parse, lines.data))
    there = [record for task in tasks(lines.data) for record in share.results(llm, task)]
    assert sorted(one.data for one in here) == sorted(one.data for one in there)
    before = LineShare(source, "what it was", LABELLING)
    with pytest.raises(TrtlaError, match="was changed meanwhile"):
        before.results(llm, [(1,)])


def test_sampled_lines_can_be_answered_greedily(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", [ask("a", max_tokens=12)])
    hot = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 3}
    sampled = write(tmp_path / "sampled.jsonl", [ask("a", max_tokens=12, **hot)])
    for source, *flags in ((plain,), (sampled, "--force-greedy")):
        ran = batch(source, tmp_path / source.stem, *flags)
        assert ran.code == 0, ran.err
    assert texts(tmp_path / "plain") == texts(tmp_path / "sampled")
    other = batch(sampled, tmp_path / "sampled")
    assert other.code == 2, "another job: its texts would be others"
