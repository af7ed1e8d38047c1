"""The cost table: interpolation, measurement by a given function, and its file."""

from __future__ import annotations

import json
import os

import pytest
import torch

from trtla.lookahead import LookaheadConfig
from trtla.runtime.cost_probe import measure_costs
from trtla.runtime.cost_table import CostPlan, CostTable, get, load, measure, save

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
        ((1, ((1, float("nan")),)),),
    ],
)  # fmt: skip
def test_tables_out_of_order_are_refused(rows):
    with pytest.raises(ValueError, match=r"order|positive"):
        CostTable(rows)


def test_measuring_runs_every_size_within_the_limits():
    seen = set()
    table = measure(lambda count, each: seen.add((count, each)), CostPlan((1, 4), (1, 2, 4, 8), 16))
    assert seen == {(1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 2), (4, 4)}
    assert [[n for n, _ in points] for _, points in table.rows] == [[1, 2, 4, 8], [4, 8, 16]]


def test_the_real_model_is_measured_and_its_blocks_come_back(tiny_llama):
    from trtla import LLM

    with LLM(tiny_llama, dtype="float32", max_batch_size=4) as llm:
        executor = llm._executor
        free = len(executor._cache.pool._free)
        table = measure_costs(executor._forward, executor._cache, executor.limits)
        assert len(executor._cache.pool._free) == free
    assert [count for count, _ in table.rows] == [1, 4]
    assert table.seconds(64) > table.seconds(1) > 0


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


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '"text"', "{}", '{"format_version": 1, "key": "k", "rows": 7}',
        '{"format_version": 1, "key": "other", "rows": [{"sequences": 1, "points": [[1, 1.0]]}]}',
        '{"format_version": 9, "key": "k", "rows": [{"sequences": 1, "points": [[1, 1.0]]}]}',
        '{"format_version": 1, "key": "k", "rows": [{"sequences": 1, "points": [[1, -1.0]]}]}',
        '{"format_version": 1, "key": "k", "rows": [{"sequences": 1, "points": [[1]]}]}',
    ],
)  # fmt: skip
def test_broken_and_foreign_files_are_written_anew(tmp_path, text):
    path = tmp_path / "trtla-cost-k.json"
    path.write_text(text)
    assert load("k", [tmp_path]) is None
    assert get("k", [tmp_path], lambda: TABLE) == TABLE
    assert json.loads(path.read_text())["key"] == "k"
    assert get("k", [tmp_path], lambda: pytest.fail("measured again")) == TABLE


def test_the_key_tells_threads_and_arithmetic_apart(tiny_llama):
    from trtla.build.engine import BuildSettings, engine_from_hugging_face
    from trtla.runtime.cost_probe import cost_key

    engine = engine_from_hugging_face(tiny_llama, BuildSettings(LookaheadConfig(3, 3, 3)))
    cpu = torch.device("cpu")
    keys = {cost_key(engine, "float32", cpu), cost_key(engine, "bfloat16", cpu)}
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        keys.add(cost_key(engine, "float32", cpu))
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 3
