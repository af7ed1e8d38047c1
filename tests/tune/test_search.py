"""The search runs what is promising first, and ends when the best are known or the time is over."""

from __future__ import annotations

import pytest

from tests.tune.test_prediction import SAMPLES, Clock, steps_of
from trtla.settings.lookahead import LookaheadConfig
from trtla.tune.grid import grid
from trtla.tune.prediction import ALL, Predictor, best
from trtla.tune.search import Search

TRIPLES = grid(LookaheadConfig(7, 7, 7))


class Time:
    """Stands still; jobs that take a while move it on."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch):
    monkeypatch.setattr("trtla.tune.search.time", still := Time())
    return still


class Known:
    """Steps that become known as they are run; a guess knows nothing of G."""

    samples = tuple(SAMPLES)

    def __init__(self) -> None:
        self.found = set()

    def of(self, triple, sample):
        if (triple, sample) in self.found or triple.is_autoregressive:
            return steps_of(triple, sample)
        w, n, _ = triple.as_tuple()
        return steps_of(LookaheadConfig(w, n, 4), sample)[0], "interpolated"

    def replay(self, triples, deadline):
        return 0


def search(known, clock, seconds, run=None):
    predictor = Predictor(SAMPLES, {"code": clock, "chat": clock}, known.of)

    def predict():
        return predictor.rows(TRIPLES, [1])

    def all_run(jobs, deadline):
        known.found |= set(jobs)
        return True

    found = Search(known, TRIPLES, predict, run or all_run, seconds)
    return found.go(), predict()


def test_the_best_are_known_at_the_end_and_most_triples_are_never_run():
    known = Known()
    finished, rows = search(known, Clock(20.0, 1.0), 60.0)
    assert finished
    for category in ("code", "chat", ALL):
        assert {row.acceptance for row in best(rows, category, 1)[:3]} == {"measured"}
    assert len({triple for triple, _ in known.found}) < len(TRIPLES) / 2


def test_the_best_of_all_is_found():
    known = Known()
    _, rows = search(known, Clock(20.0, 1.0), 60.0)
    predictor = Predictor(SAMPLES, {"code": Clock(20.0, 1.0), "chat": Clock(20.0, 1.0)}, steps_of)
    truth = best(predictor.rows(TRIPLES, [1]), ALL, 1)[0]
    found = best(rows, ALL, 1)[0]
    assert found.predicted_speedup > 0.97 * truth.predicted_speedup


def test_the_first_jobs_are_coarse_and_of_one_sample_each(time):
    seen = []

    def run(jobs, deadline):
        seen.append(list(jobs))
        time.now += 1.0
        return False

    search(Known(), Clock(20.0, 1.0), 0.5, run)
    assert {sample.number for _, sample in seen[0]} == {0}
    assert len({triple for triple, _ in seen[0]}) <= 24


def test_it_ends_in_time_without_being_finished(time):
    starts = []

    def run(jobs, deadline):
        starts.append(time.now)
        time.now += 0.1
        return False

    finished, _ = search(Known(), Clock(20.0, 1.0), 0.35, run)
    assert not finished
    assert starts == pytest.approx([0.0, 0.1, 0.2, 0.3])
