"""The search runs triples for real, keeps what is done, and stops in time."""

from __future__ import annotations

import pytest

from tests.extras.bench.tune.conftest import FOREVER, LIMIT, make_groups
from trtla import LLM, LookaheadConfig
from trtla.extras.bench.journal import Measurements
from trtla.extras.bench.kept import JournalledTurns
from trtla.extras.bench.tune.grid import FREE, Groups, Sample, Steps, coarse, near
from trtla.extras.bench.tune.prediction import Predictor
from trtla.extras.bench.tune.search import Search
from trtla.results.rows import Cell
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE

CELL = Cell(device="cpu", dtype="float32", threads=1, batch_size=1, temperature=0.0, category="all")
FREE_TOKENS = CostTable.of([(1, 1.0), (128, 1.0)])


def searched(llm: LLM, groups: Groups, folder, deadline: float, limit=LIMIT):
    """A search on a machine where tokens cost nothing, and whether it came to its end."""
    notes: list[str] = []
    search = Search(
        llm,
        groups,
        limit,
        CELL,
        JournalledTurns(Measurements(folder / "kept.jsonl", "key", "--output-dir")),
        notes.append,
    )
    predictor = Predictor(CELL, groups, search.finished, FREE_TOKENS)
    return search, search.go(lambda: predictor.rows([1]), deadline), notes


def alone(llm: LLM, sample: Sample, triple: LookaheadConfig) -> Steps:
    done = llm.generate([sample.prompt], sample.sampling, triple)[0]
    fed = done.stats.fed - len(sample.prompt)
    return Steps(len(done.output_ids) - 1, done.stats.steps, fed)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_steps_in_a_shared_batch_are_those_of_a_request_alone(llm, tmp_path, temperature):
    groups = make_groups(llm, 1, temperature=temperature)
    search, finished, _ = searched(llm, groups, tmp_path, FOREVER, LookaheadConfig(2, 3, 2))
    assert finished
    assert len(search.finished) > 3
    for triple, ran in search.finished.items():
        assert ran == {one[0]: alone(llm, one[0], triple) for one in groups.values()}


def test_the_better_triples_run_on_all_samples_and_others_on_one(llm, tmp_path):
    groups = make_groups(llm, 3, length=8)
    search, _, _ = searched(llm, groups, tmp_path, FOREVER)
    counts = [len(ran) for ran in search.finished.values()]
    assert set(coarse(LIMIT)) <= set(search.finished)
    assert set(counts) == {2, 4, 6}  # of a sample, two and all three of each category
    assert counts.count(6) < counts.count(2) + counts.count(4)
    assert all(triple.fits(LIMIT) for triple in search.finished)


def test_after_the_deadline_only_the_smallest_triple_runs(llm, tmp_path):
    groups = make_groups(llm, 2)
    search, finished, notes = searched(llm, groups, tmp_path, deadline=0.0)
    assert not finished
    assert list(search.finished) == coarse(LIMIT)[:1]
    assert set(search.finished[coarse(LIMIT)[0]]) == {own[0] for own in groups.values()}
    assert len(notes) == 1


def test_a_search_goes_on_from_what_is_kept(llm, tmp_path):
    groups = make_groups(llm, 1, length=6)
    searched(llm, groups, tmp_path, deadline=0.0)
    first, _, _ = searched(llm, groups, tmp_path, FOREVER)
    again, finished, notes = searched(llm, groups, tmp_path, deadline=0.0)
    assert (finished, notes) == (True, [])
    assert again.finished == first.finished


def test_the_coarse_grid_keeps_to_the_limit_component_by_component():
    assert len(coarse(FREE)) == 23  # 15,7,15 would feed more than 128 tokens
    assert LookaheadConfig(7, 7, 7) in coarse(FREE)
    assert LookaheadConfig(15, 5, 15) in coarse(FREE)
    limit = LookaheadConfig(6, 4, 2)
    assert limit in coarse(limit)
    assert all(triple.fits(limit) for triple in coarse(limit))
    assert len(set(coarse(limit))) == len(coarse(limit))
    assert coarse(AUTOREGRESSIVE) == coarse(LookaheadConfig(3, 3, 0)) == []


def test_neighbours_differ_in_one_size():
    limit = LookaheadConfig(6, 4, 2)
    found = near(LookaheadConfig(3, 4, 1), limit)
    assert [str(triple) for triple in found] == ["2,4,1", "4,4,1", "3,3,1", "3,4,2"]
    assert LookaheadConfig(6, 4, 2) in near(LookaheadConfig(5, 4, 2), limit)  # the limit's own
    assert all(triple.max_draft_len <= 127 for triple in near(LookaheadConfig(15, 5, 15), FREE))
