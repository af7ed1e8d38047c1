"""Rounds of real requests: as many as fit, kept as a whole, of which medians count."""

from __future__ import annotations

import json

import pytest

from tests.tune.conftest import make_groups
from trtla.results.documents import GridPoint
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune.measurements import FILE, Measurements
from trtla.tune.plan import Sample, by_category
from trtla.tune.prediction import ALL
from trtla.tune.verification import OTHERS, PLAIN, Contender, Contest, Rounds, contenders

GROUPS = by_category([Sample(c, i, (1,), SamplingParams(8)) for c in "ab" for i in range(4)])
TRIPLE = Contender("2,3,2", LookaheadConfig(2, 3, 2))


def second_each(samples, size):
    """Plain decoding of a sample takes a second."""
    return float(len(samples))


def point(triple, category, speedup):
    return GridPoint(
        lookahead=triple, category=category, batch_size=1, predicted_speedup=speedup
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "samples", "names"),
    [(1000.0, 4, 4), (96.0, 4, 4), (95.0, 3, 4), (24.0, 1, 4), (23.0, 1, 3), (0.0, 1, 3)],
)
def test_what_does_not_fit_into_the_time_is_left_out(seconds, samples, names):
    wanted = Contest(GROUPS, [PLAIN, TRIPLE, *OTHERS], 1)
    found = wanted.within(seconds, second_each, rounds=3)
    assert {len(own) for own in found.groups.values()} == {samples}
    assert found.contenders == wanted.contenders[:names]
    assert found.seconds(second_each, 3) <= seconds or (samples, names) == (1, 3)


def test_the_best_of_all_and_of_each_category_are_verified():
    triples = [(1, 2, 1), (1, 2, 3), (1, 3, 1), (1, 3, 3), (1, 5, 1)]
    rows = [point((1, 1, 0), name, 1.0) for name in ("a", "b", ALL)]
    rows += [point(triple, ALL, 1.5 - 0.1 * i) for i, triple in enumerate(triples)]
    rows += [point(triples[1], "a", 2.0), point(triples[4], "b", 2.0)]
    names = [one.name for one in contenders(rows, 1)]
    assert names == ["1,1,0", "1,2,1", "auto", "prompt-lookup", "1,2,3", "1,3,1", "1,5,1"]


def test_real_rounds_are_kept_whole_and_broken_ones_are_taken_anew(llm, tmp_path):
    contest = Contest(make_groups(llm, 1), [PLAIN, TRIPLE, *OTHERS], 2)
    first = Rounds(llm, contest, Measurements(tmp_path, "k"))
    first.take()
    first.take()
    assert (first.count, first.last_s > 0) == (2, True)
    path = tmp_path / FILE
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 4  # two categories
    path.write_text("".join(lines[:3]) + lines[3][:40])
    again = Rounds(llm, contest, Measurements(tmp_path, "k"))
    again.take()
    again.take()
    kept = [json.loads(line)["value"] for line in path.read_text().splitlines() if line[-1] == "}"]
    assert len(kept) == 4
    assert all(set(value) == {"1,1,0", "2,3,2", "auto", "prompt-lookup"} for value in kept)


def test_medians_of_rounds_stand_beside_predictions(tmp_path):
    kept = Measurements(tmp_path, "k")
    ones = {name: own[:1] for name, own in GROUPS.items()}
    for number, (a, b) in enumerate([(0.5, 2.0), (0.25, 2.0), (0.5, 4.0)]):
        for category, seconds in (("a", a), ("b", b)):
            name = f"round {number} 1 {category} 1 1.1.0,2.3.2"
            kept.put(name, {"1,1,0": 1.0, "2,3,2": seconds})
    rounds = Rounds(None, Contest(ones, [PLAIN, TRIPLE], 1), kept)
    for _ in range(3):
        rounds.take()
    found = {
        one.category: one
        for one in rounds.verified([point((2, 3, 2), "a", 2.2)])
        if one.lookahead == (2, 3, 2)
    }
    assert found["a"].measured_speedup == 2.0
    assert found["a"].error_percent == pytest.approx(10.0)
    assert found["b"].measured_speedup == 0.5
    assert found["b"].error_percent is None
    assert found[ALL].measured_speedup == pytest.approx(2.0 / 2.5)  # of whole times, by round
    assert rounds.scatter() == pytest.approx(2.0)
