"""Contests: who competes, turns that are kept whole, medians, and a field that is halved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.extras.bench.tune.conftest import FOREVER, make_groups
from trtla.extras.bench.documents import EVERY_CATEGORY
from trtla.extras.bench.journal import Measurements
from trtla.extras.bench.kept import JournalledTurns
from trtla.extras.bench.tune.contest import OTHERS, PLAIN, Contest, contenders
from trtla.extras.bench.tune.grid import Sample
from trtla.extras.bench.ways import Way
from trtla.measuring.arms import ArmRun
from trtla.results.rows import Cell, Row
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

GROUPS = {c: [Sample(c, i, (1,), SamplingParams(8)) for i in range(2)] for c in "ab"}
TRIPLE = Way("lookahead 2,3,2", LookaheadConfig(2, 3, 2))
CELL = Cell(
    device="cpu", dtype="float32", threads=1, batch_size=1, temperature=0.0, category=EVERY_CATEGORY
)


def point(triple, category, speedup):
    arm = "ar" if triple == (1, 1, 0) else f"lookahead {','.join(map(str, triple))}"
    cell = CELL.model_copy(update={"category": category})
    return Row.fill(cell, arm=arm, predicted_speedup=speedup)


def kept(folder: Path) -> JournalledTurns:
    return JournalledTurns(Measurements(folder / "kept.jsonl", "k", "--output-dir"))


def run(seconds: float) -> ArmRun:
    return ArmRun(
        outputs=((1, 2),), time_s=seconds, first_s=(0.1,), last_s=(0.2,), steps=1, forwards=1
    )


STORED = SimpleNamespace(pretrained_config=SimpleNamespace(fp8=False, dtype="float32"))
NO_MODEL = SimpleNamespace(
    stats=lambda: SimpleNamespace(weight_type=None, compute_type=None),
    engine=SimpleNamespace(config=STORED),
)


class Played(Contest):
    """A contest whose contenders take made seconds: {category: {name: seconds}} for each turn."""

    def __init__(self, folder, field, seconds):
        self.notes = []
        super().__init__(NO_MODEL, GROUPS, field, CELL, kept(folder), self.notes.append)
        self.made = seconds

    def _warm_up(self):
        pass

    def _take(self, cell, batch):
        made = self.made(cell.category, batch.round - 1)
        return {one.name: run(made[one.name]) for one in self.field}


def test_the_best_of_all_and_of_each_category_compete():
    triples = [(1, 2, n) for n in range(1, 9)]
    rows = [point((1, 1, 0), name, 1.0) for name in ("a", "b", EVERY_CATEGORY)]
    rows += [point(triple, EVERY_CATEGORY, 1.9 - 0.1 * i) for i, triple in enumerate(triples)]
    rows += [point(triples[1], "a", 2.0), point(triples[7], "b", 2.0)]
    names = [one.name for one in contenders(rows, 1)]
    assert names[:4] == ["ar", "lookahead 1,2,1", "lookahead auto", "prompt-lookup"]
    assert names[4:] == [f"lookahead 1,2,{n}" for n in (2, 3, 4, 5, 6, 8)]


def test_real_turns_are_kept_whole_and_a_broken_one_is_taken_again(llm, tmp_path):
    field, groups = [PLAIN, TRIPLE, *OTHERS], make_groups(llm, 1, length=6)
    cell = CELL.model_copy(update={"batch_size": 2})
    first = Contest(llm, groups, field, cell, kept(tmp_path))
    assert first.go(FOREVER, 2, lambda: None, needed=True)
    assert (first.turns, first.expected_s > 0) == (2, True)
    path = tmp_path / "kept.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 2 * 2  # turns, categories
    path.write_text("".join(lines[:3]) + lines[3][:40])
    again = Contest(llm, groups, field, cell, kept(tmp_path))
    assert again.go(FOREVER, 2, lambda: None, needed=True)
    whole = [line for line in path.read_text().splitlines(keepends=True) if line[-2] == "}"]
    assert (len(whole), whole[:3]) == (4, lines[:3])
    assert [len(json.loads(line)["value"]) for line in whole] == [4] * 4
    rows = {(row.category, row.arm): row for row in again.rows()}
    assert len(rows) == 3 * 4
    assert all(row.equal_texts == row.texts for row in rows.values())
    assert rows["all", "ar"].texts == 2 * 2 * 2  # turns, categories, a batch of two


def test_rows_are_medians_of_turns(tmp_path):
    turns = [(0.5, 2.0), (0.25, 2.0), (0.5, 4.0)]

    def seconds(category, number):
        return {"ar": 1.0, TRIPLE.name: turns[number]["ab".index(category)]}

    contest = Played(tmp_path, [PLAIN, TRIPLE], seconds)
    assert contest.go(FOREVER, 3, lambda: None, needed=True)
    found = {row.category: row for row in contest.rows() if row.triple == (2, 3, 2)}
    assert found["a"].speedup_vs_ar == 2.0
    assert found["b"].speedup_vs_ar == 0.5
    assert found["all"].speedup_vs_ar == pytest.approx(2.0 / 2.5)  # of whole times, by turn
    assert contest.scatter() == pytest.approx(2.0)  # of turns 0 and 2, which have the same sample


def test_the_slower_half_goes_and_who_is_best_somewhere_stays(tmp_path):
    triples = [Way(f"lookahead 1,2,{n}", LookaheadConfig(1, 2, n)) for n in range(1, 9)]
    field = [PLAIN, *OTHERS, *triples]

    def seconds(category, number):
        own = {one.name: 1.0 + 0.1 * i for i, one in enumerate(triples)}
        own["lookahead 1,2,8"] = 0.5 if category == "b" else 3.0
        return {**own, "ar": 1.0, "lookahead auto": 9.0, "prompt-lookup": 9.0}

    contest = Played(tmp_path, field, seconds)
    assert contest.go(FOREVER, 6, lambda: None, needed=True)
    left = [one.name for one in contest.field]
    best = [f"lookahead 1,2,{n}" for n in (1, 2, 8)]
    assert left == ["ar", "lookahead auto", "prompt-lookup", *best]
    assert contest.notes[0].startswith("batch size 1: after 3 turns the slower ones leave: look")
    assert {row.speedup_vs_ar for row in contest.rows()} >= {2.0}


def test_without_time_the_least_is_measured_or_nothing(tmp_path):
    def seconds(category, number):
        return {one.name: 1.0 for one in (PLAIN, TRIPLE, *OTHERS)}

    needed = Played(tmp_path / "a", [PLAIN, TRIPLE, *OTHERS], seconds)
    (tmp_path / "a").mkdir()
    assert needed.go(0.0, 9, lambda: None, needed=True)
    assert (needed.turns, [one.name for one in needed.field]) == (
        1,
        ["ar", TRIPLE.name, "lookahead auto"],
    )
    assert needed.notes == ["batch size 1: there is no time for prompt-lookup"]
    assert not Played(tmp_path, [PLAIN, TRIPLE], seconds).go(0.0, 9, lambda: None, needed=False)
