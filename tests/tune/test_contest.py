"""Contests: who competes, turns that are kept whole, medians, and a field that is halved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tune.conftest import FOREVER, make_groups
from trtla.bench.arms import Way
from trtla.bench.journal import Measurements
from trtla.results.documents import GridPoint
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune.contest import OTHERS, PLAIN, Contest, contenders
from trtla.tune.prediction import ALL
from trtla.tune.search import Sample

GROUPS = {c: [Sample(c, i, (1,), SamplingParams(8)) for i in range(2)] for c in "ab"}
TRIPLE = Way("2,3,2", LookaheadConfig(2, 3, 2))


def point(triple, category, speedup):
    return GridPoint(
        lookahead=triple, category=category, batch_size=1, predicted_speedup=speedup
    )  # fmt: skip


def journal(folder: Path) -> Measurements:
    return Measurements(folder / "kept.jsonl", "k", "--output-dir")


STORED = SimpleNamespace(pretrained_config=SimpleNamespace(fp8=False, dtype="float32"))
NO_MODEL = SimpleNamespace(
    stats=lambda: SimpleNamespace(weight_type=None, compute_type=None),
    engine=SimpleNamespace(config=STORED),
)


class Played(Contest):
    """A contest whose contenders take made seconds: {category: {name: seconds}} for each turn."""

    def __init__(self, folder, field, seconds):
        super().__init__(NO_MODEL, GROUPS, field, 1, journal(folder))
        self.made = seconds

    def _warm_up(self):
        pass

    def _decode(self, own, number):
        made = self.made(own[0].category, number)
        return {one.name: made[one.name] for one in self.field}


def test_the_best_of_all_and_of_each_category_compete():
    triples = [(1, 2, n) for n in range(1, 9)]
    rows = [point((1, 1, 0), name, 1.0) for name in ("a", "b", ALL)]
    rows += [point(triple, ALL, 1.9 - 0.1 * i) for i, triple in enumerate(triples)]
    rows += [point(triples[1], "a", 2.0), point(triples[7], "b", 2.0)]
    names = [one.name for one in contenders(rows, 1)]
    assert names[:4] == ["1,1,0", "1,2,1", "auto", "prompt-lookup"]
    assert names[4:] == ["1,2,2", "1,2,3", "1,2,4", "1,2,5", "1,2,6", "1,2,8"]


def test_real_turns_are_kept_whole_and_a_broken_one_is_taken_again(llm, tmp_path):
    field, groups = [PLAIN, TRIPLE, *OTHERS], make_groups(llm, 1, length=6)
    first = Contest(llm, groups, field, 2, journal(tmp_path))
    assert first.go(FOREVER, 2, lambda: None, needed=True)
    assert (first.turns, first.expected_s > 0) == (2, True)
    path = tmp_path / "kept.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 2
    path.write_text(lines[0] + lines[1][:40])
    again = Contest(llm, groups, field, 2, journal(tmp_path))
    assert again.go(FOREVER, 2, lambda: None, needed=True)
    kept = [json.loads(line)["value"] for line in path.read_text().splitlines() if line[-1] == "}"]
    assert len(kept) == 2
    assert kept[0] == json.loads(lines[0])["value"]
    assert all(
        set(seconds) == {"1,1,0", "2,3,2", "auto", "prompt-lookup"}
        for value in kept for seconds in value.values()
    )  # fmt: skip


def test_medians_of_turns_stand_beside_predictions(tmp_path):
    turns = [(0.5, 2.0), (0.25, 2.0), (0.5, 4.0)]

    def seconds(category, number):
        return {"1,1,0": 1.0, "2,3,2": turns[number]["ab".index(category)]}

    contest = Played(tmp_path, [PLAIN, TRIPLE], seconds)
    assert contest.go(FOREVER, 3, lambda: None, needed=True)
    found = {
        one.category: one
        for one in contest.verified([point((2, 3, 2), "a", 2.2)])
        if one.lookahead == (2, 3, 2)
    }
    assert found["a"].measured_speedup == 2.0
    assert found["a"].error_percent == pytest.approx(10.0)
    assert found["b"].measured_speedup == 0.5
    assert found["b"].error_percent is None
    assert found[ALL].measured_speedup == pytest.approx(2.0 / 2.5)  # of whole times, by turn
    assert contest.scatter() == pytest.approx(2.0)  # of turns 0 and 2, which have the same sample


def test_the_slower_half_goes_and_who_is_best_somewhere_stays(tmp_path):
    triples = [Way(f"1,2,{n}", LookaheadConfig(1, 2, n)) for n in range(1, 9)]
    field = [PLAIN, *OTHERS, *triples]

    def seconds(category, number):
        own = {one.name: 1.0 + 0.1 * i for i, one in enumerate(triples)}
        own["1,2,8"] = 0.5 if category == "b" else 3.0
        return {**own, "1,1,0": 1.0, "auto": 9.0, "prompt-lookup": 9.0}

    contest = Played(tmp_path, field, seconds)
    assert contest.go(FOREVER, 6, lambda: None, needed=True)
    left = [one.name for one in contest.field]
    assert left == ["1,1,0", "auto", "prompt-lookup", "1,2,1", "1,2,2", "1,2,8"]
    assert {one.measured_speedup for one in contest.verified([])} >= {2.0}


def test_without_time_the_least_is_measured_or_nothing(tmp_path):
    def seconds(category, number):
        return {one.name: 1.0 for one in (PLAIN, TRIPLE, *OTHERS)}

    needed = Played(tmp_path / "a", [PLAIN, TRIPLE, *OTHERS], seconds)
    (tmp_path / "a").mkdir()
    assert needed.go(0.0, 9, lambda: None, needed=True)
    assert (needed.turns, [one.name for one in needed.field]) == (1, ["1,1,0", "2,3,2", "auto"])
    assert not Played(tmp_path, [PLAIN, TRIPLE], seconds).go(0.0, 9, lambda: None, needed=False)
