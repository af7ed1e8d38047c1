"""Texts that are only read at their ends arrive in few pieces, and are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

import trtla
from trtla import LLM, SamplingParams
from trtla.llm.prompt import PromptRequest
from trtla.runtime.request import Output
from trtla.settings.drafting import NO_DRAFTER

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"
PROMPTS = ("def read_file(path", "class Queue:")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SHIPPED, max_batch_size=2) as opened:
        yield opened


def deliveries(llm: LLM, whole: bool, **settings: object) -> dict[int, list[list[Output]]]:
    """The outputs of each prompt, as they arrive together."""
    how = SamplingParams(90, **settings)
    asked = [PromptRequest(text, text, how, drafter=NO_DRAFTER) for text in PROMPTS]
    requests, inbox = [llm.request(prompt) for prompt in asked], SimpleQueue()
    found: dict[int, list[list[Output]]] = {request.request_id: [] for request in requests}
    llm.executor.submit(requests, inbox.put, whole)
    while not all(came and came[-1][-1].finish_reason for came in found.values()):
        events = inbox.get(timeout=60)
        for request_id, came in found.items():
            if new := [output for id_, output in events if id_ == request_id]:
                came.append(new)
    return found


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 3}])
def test_first_tokens_come_at_once_and_the_rest_in_few_pieces(llm, settings):
    for each, together in zip(
        deliveries(llm, False, **settings).values(),
        deliveries(llm, True, **settings).values(),
        strict=True,
    ):
        assert all(len(came) == 1 for came in each)
        outputs = [output for came in together for output in came]
        starts = [output.start for output in outputs]
        assert starts == sorted(set(starts))
        assert tuple(t for o in outputs for t in o.new_tokens) == tuple(
            t for (o,) in each for t in o.new_tokens
        )
        assert len(together[0]) == 1
        assert max(map(len, together)) <= 32
        assert len(together) <= 2 + len(outputs) // 32
        assert outputs[-1].finish_reason == each[-1][0].finish_reason


def test_a_failed_step_repeats_nothing_that_was_kept(llm, monkeypatch):
    asked = (list(PROMPTS), SamplingParams(60))
    want = [done.token_ids for done in llm.generate(*asked, drafter=NO_DRAFTER)]
    stepper = llm.executor.call(lambda executor: executor._stepper)
    forward, calls = stepper.forward, iter(range(10**6))

    def failing(feeds):
        if next(calls) in (7, 8, 20):
            raise RuntimeError("as by a full disk")
        return forward(feeds)

    monkeypatch.setattr(stepper, "forward", failing)
    llm.executor.log = lambda line: None
    again = llm.generate(*asked, drafter=NO_DRAFTER)
    assert [done.token_ids for done in again] == want
    assert next(calls) > 20
