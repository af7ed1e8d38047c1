"""The cost table: interpolation, and measurement on a real model."""

from __future__ import annotations

import pytest

from trtla import LLM
from trtla.runtime.auto.probe import measure_costs
from trtla.runtime.costs import CostPlan, CostTable
from trtla.settings.lookahead import LookaheadConfig

TABLE = CostTable(((1, ((1, 1.0), (2, 2.0), (8, 5.0))), (4, ((4, 4.0), (8, 6.0)))))


@pytest.mark.parametrize(
    ("tokens", "sequences", "seconds"),
    [
        (1, 1, 1.0), (2, 1, 2.0), (5, 1, 3.5),  # on and between points
        (14, 1, 8.0),  # past the end: the last slope
        (6, 4, 5.0), (4, 4, 4.0), (6, 9, 5.0),  # the largest row serves more sequences as well
        (8, 2, 5.0 * 2 / 3 + 6.0 / 3),  # between rows
    ],
)  # fmt: skip
def test_seconds_are_linear_between_points_and_rows(tokens, sequences, seconds):
    assert TABLE.seconds(tokens, sequences) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "rows",
    [
        (), ((1, ()),), ((1, ((1, 0.0),)),), ((1, ((2, 1.0), (1, 2.0))),),
        ((1, ((1, 2.0), (2, 1.0))),), ((2, ((2, 1.0),)), (1, ((1, 1.0),))),
        ((1, ((1, float("nan")),)),), ((1, ((1, 5e-324), (2, 1.0))),), ((1, ((1, 1e-10),)),),
    ],
)  # fmt: skip
def test_tables_out_of_order_are_refused(rows):
    with pytest.raises(ValueError, match=r"order|positive"):
        CostTable(rows)


class Clock:
    """A thread's clock that goes on by a millisecond for each token fed, and at each reading."""

    def __init__(self, monkeypatch, reading=1e-3):
        self.now, self._reading = 0.0, reading
        monkeypatch.setattr("trtla.runtime.auto.probe.thread_clock", self.read)

    def read(self):
        self.now += self._reading
        return self.now, self.now

    def timed(self, forward):
        def run(feeds):
            self.now += 1e-3 * sum(feed.length for feed in feeds)
            return forward(feeds)

        return run


def test_the_real_model_is_measured_and_its_blocks_come_back(tiny_llama, monkeypatch):
    clock = Clock(monkeypatch)
    triple = LookaheadConfig(7, 7, 7)
    with LLM(tiny_llama, lookahead=triple, dtype="float32", max_batch_size=4) as llm:
        executor = llm._executor
        free = len(executor._cache.pool._free)
        plan = CostPlan(row_budget_s=0.0)  # what an adaptive step can feed is timed all the same
        run = clock.timed(executor._stepper.forward)
        table = measure_costs(run, executor._cache, executor.limits, plan)
        assert len(executor._cache.pool._free) == free
    points = {count: [tokens for tokens, _ in row] for count, row in table.rows}
    assert points[1] == [1, 2, 4, 8, 16, 32, 64, triple.max_decoding_tokens]
    assert points[4] == [4 * tokens for tokens in points[1]]
    for tokens in (1, 8, 64):
        assert table.seconds(tokens) == pytest.approx(1e-3 * (1 + tokens))
