"""The cost table: interpolation, measurement by a given function, and its file."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch

from trtla import LLM, SamplingParams
from trtla.runtime.auto.probe import measure_costs
from trtla.runtime.costs import CostPlan, CostTable, get, load, save
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.lookahead import LookaheadConfig

PLAN = CostPlan(batches=(1, 4), needed=2)
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


def test_a_table_survives_its_file(tmp_path):
    path = save(TABLE, "k", [tmp_path])
    assert path is not None
    assert load("k", [tmp_path]) == TABLE
    assert os.listdir(tmp_path) == [path.name]  # nothing temporary stays


def test_the_next_folder_is_taken_when_one_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert save(TABLE, "k", [blocked, tmp_path / "new"]) == tmp_path / "new" / "trtla-cost-k.json"
    assert load("k", [blocked, tmp_path / "new"]) == TABLE
    assert save(TABLE, "k", [blocked]) is None


POINTS = '[{"sequences": 1, "points": [[1, 1.0]]}]'
NEGATIVE, SHORT = POINTS.replace("1.0", "-1.0"), POINTS.replace(", 1.0", "")
HUGE, TINY = POINTS.replace("1.0", "1" + "0" * 400), POINTS.replace("1.0", "5e-324")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '"text"', "{}",
        '{"format_version": 2, "takes_left": 0, "key": "k", "rows": 7}',
        f'{{"format_version": 2, "takes_left": 0, "key": "other", "rows": {POINTS}}}',
        f'{{"format_version": 1, "key": "k", "rows": {POINTS}}}',
        f'{{"format_version": 9, "takes_left": 0, "key": "k", "rows": {POINTS}}}',
        f'{{"format_version": 2, "takes_left": null, "key": "k", "rows": {POINTS}}}',
        f'{{"format_version": 2, "takes_left": 0, "key": "k", "rows": {NEGATIVE}}}',
        f'{{"format_version": 2, "takes_left": 0, "key": "k", "rows": {SHORT}}}',
        f'{{"format_version": 2, "takes_left": 0, "key": "k", "rows": {HUGE}}}',
        f'{{"format_version": 2, "takes_left": 0, "key": "k", "rows": {TINY}}}',
        f'{{"format_version": 2, "takes_left": 1e999, "key": "k", "rows": {POINTS}}}',
    ],
)  # fmt: skip
def test_broken_and_foreign_files_are_written_anew(tmp_path, text):
    path = tmp_path / "trtla-cost-k.json"
    path.write_text(text)
    assert load("k", [tmp_path]) is None
    assert get("k", [tmp_path], PLAN, lambda plan: TABLE) == TABLE
    assert json.loads(path.read_text())["key"] == "k"
    assert get("k", [tmp_path], PLAN, lambda plan: pytest.fail("measured again")) == TABLE


def test_a_table_of_fewer_sequences_or_smaller_steps_is_completed(tmp_path):
    """Engines of a shape share a table, whatever their triples and batch sizes are."""
    save(TABLE, "k", [tmp_path])
    plan = replace(PLAN, batches=(1, 16), needed=12)
    more = CostTable(((1, ((1, 1.5), (12, 4.5))), (16, ((16, 8.0), (192, 9.0)))))
    found = get("k", [tmp_path], plan, lambda _: more)
    assert found.rows[0] == (1, ((1, 1.0), (2, 2.0), (8, 4.5), (12, 4.5)))
    assert [count for count, _ in found.rows] == [1, 4, 16]
    for again in (PLAN, plan):
        assert get("k", [tmp_path], again, lambda plan: pytest.fail("measured again")) == found


def test_a_disturbed_table_is_taken_again_until_a_calm_one_but_not_for_ever(tmp_path):
    busy = [CostTable.of([(1, 2.0 + i), (2, 11.0 - i), (8, 11.0)]) for i in range(5)]
    alone, takes = replace(PLAN, batches=(1,)), []

    def take(plan):
        takes.append(len(takes))
        return replace(busy[takes[-1]], takes_left=3)

    tables = [get("k", [tmp_path], alone, take) for _ in range(9)]
    assert len(takes) == 4
    assert tables[-1].rows == ((1, ((1, 2.0), (2, 8.0), (8, 11.0))),)
    save(replace(busy[0], takes_left=2), "k", [tmp_path])
    assert get("k", [tmp_path], alone, lambda plan: busy[4]).takes_left == 0


def test_nothing_is_kept_where_nothing_can_be_measured(tmp_path):
    assert get("k", [tmp_path], PLAN, lambda plan: None) is None
    assert os.listdir(tmp_path) == []
    save(TABLE, "k", [tmp_path])
    assert get("k", [tmp_path], replace(PLAN, needed=99), lambda plan: None) == TABLE


def test_the_key_tells_threads_and_arithmetic_apart(tiny_llama):
    from trtla.formats.engine import engine_from_hugging_face
    from trtla.formats.engine_limits import BuildSettings
    from trtla.runtime.auto.probe import cost_key, shape_of

    engine = engine_from_hugging_face(tiny_llama, BuildSettings(LookaheadConfig(3, 3, 3)))
    cpu = torch.device("cpu")
    keys = {cost_key(shape_of(engine), "float32", cpu), cost_key(shape_of(engine), "bfloat16", cpu)}
    before = num_threads()
    set_threads(before + 1)
    try:
        keys.add(cost_key(shape_of(engine), "float32", cpu))
    finally:
        set_threads(before)
    assert len(keys) == 3


@pytest.mark.usefixtures("measured_costs")
def test_only_what_is_in_flight_is_measured(tiny_llama, monkeypatch, own_cache):
    """One request waits for forwards of one sequence; a batch measures what is missing."""
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    clock, rows = Clock(monkeypatch, reading=1.0), []  # so slow that little is measured twice
    with LLM(tiny_llama, dtype="float32", max_batch_size=16) as llm:
        stepper = llm._executor._stepper
        stepper.forward = clock.timed(stepper.forward)
        for prompts in (["def f("], ["a", "b", "c"]):
            llm.generate(prompts, SamplingParams(max_output_len=4), "auto")
            (file,) = own_cache.rglob("trtla-cost-*")
            rows.append([row["sequences"] for row in json.loads(file.read_text())["rows"]])
    assert rows == [[1], [1, 4]]
