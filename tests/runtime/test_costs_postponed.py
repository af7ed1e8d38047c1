"""Adaptive requests while no block is free to measure in: plain steps until there is."""

from __future__ import annotations

import json
from itertools import count
from threading import Event

import pytest

from tests.support.torn import Gate
from trtla import LLM, LookaheadConfig, SamplingParams, TrtlaError
from trtla.runtime.costs import CostPlan

PROMPT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n"
PLAIN = LookaheadConfig(1, 1, 0)


@pytest.fixture
def tables(monkeypatch, own_cache):
    """Where cost tables are kept, of which there are none.

    Every forward takes a second by the clock, so that few are measured.
    """
    seconds = count(1.0)
    clock = lambda: (next(seconds),) * 2  # noqa: E731
    monkeypatch.setattr("trtla.runtime.auto.probe.thread_clock", clock)
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    return lambda: list(own_cache.rglob("trtla-cost-*"))


@pytest.mark.usefixtures("measured_costs")
def test_costs_are_measured_as_soon_as_there_is_room(tiny_llama, tables):
    with LLM(tiny_llama, dtype="float32", max_batch_size=2) as llm:
        sampling = SamplingParams(max_output_len=120)
        expected = llm.generate(PROMPT, sampling, PLAIN)[0].output_ids
        pool = llm._executor._cache.pool
        need = -(-(len(llm.encode(PROMPT)) + 120 + 83) // 32)
        others = pool.allocate(32 * (pool.num_free - need))
        engine, go = llm.executor, Event()
        gate = Gate(llm, 40, lambda: go.is_set() or not engine._commands.empty())
        stream = llm.stream(PROMPT, sampling, "auto")
        chunks = [next(stream) for _ in range(40)]
        assert all(len(chunk.token_ids) == 1 for chunk in chunks)
        assert tables() == []
        assert gate.reached.wait(60)
        with pytest.raises(TrtlaError, match="no block of the K/V cache is free"):
            engine.call(lambda executor: executor.measure_costs(CostPlan()))
        engine.call(lambda _: pool.release(others))
        go.set()
        chunks += stream
        done = chunks[-1].completion
        assert done.output_ids == expected
        (table,) = tables()
        assert json.loads(table.read_text())["rows"][0]["points"] != [[1, 1.0], [2, 2.0]]
