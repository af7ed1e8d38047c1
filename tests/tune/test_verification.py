"""Rounds of real requests: whole turns are kept, medians count, a busy machine is told."""

from __future__ import annotations

import pytest

from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune.measurements import Measurements
from trtla.tune.prediction import ALL
from trtla.tune.samples import Sample
from trtla.tune.verification import LEAST_ROUNDS, PLAIN, Contender, Rounds

SAMPLES = {c: [Sample(c, 0, (1,), SamplingParams(8))] for c in ("code", "chat")}
TRIPLE = Contender.of(LookaheadConfig(2, 3, 2))


class Scripted(Rounds):
    """Takes its seconds from a list, plain decoding being 1.0; warming up costs none of them."""

    def __init__(self, folder, seconds, samples=SAMPLES):
        super().__init__(None, samples, 1, Measurements(folder, "k"))
        self._script, self.decoded = iter(seconds), 0
        self._warm = {PLAIN.name, TRIPLE.name}

    def _decode(self, arm, batches):
        self.decoded += 1
        return next(self._script) if arm.name != "ar" else 1.0


def nothing(category, number):
    """Nothing is timed beside the rounds."""


def test_steps_are_timed_beside_each_turn_that_is_taken(tmp_path):
    seen = []

    def beside(category, number):
        seen.append((category, number))

    Scripted(tmp_path, [0.5] * 40).run([PLAIN, TRIPLE], 2, deadline=0.0, beside=beside)
    assert seen == [("code", 0), ("chat", 0), ("code", 1), ("chat", 1)]
    Scripted(tmp_path, []).run([PLAIN, TRIPLE], 2, deadline=0.0, beside=beside)
    assert len(seen) == 4  # kept rounds are not taken again


def test_medians_of_rounds_stand_beside_predictions(tmp_path):
    code, chat = (0.5, 0.25, 0.5), (2.0, 2.0, 4.0)
    rounds = Scripted(tmp_path, [s for pair in zip(code, chat, strict=True) for s in pair])
    done = rounds.run([PLAIN, TRIPLE], 3, deadline=0.0, beside=nothing)
    found = {one.category: one for one in rounds.verified([TRIPLE], done, {("2,3,2", "code"): 2.2})}
    assert found["code"].measured_speedup == 2.0
    assert found["code"].error_percent == pytest.approx(10.0)
    assert found["chat"].measured_speedup == 0.5
    assert found["chat"].error_percent is None
    assert found[ALL].measured_speedup == pytest.approx(2.0 / 2.5)  # of whole times, round by round
    assert rounds.scatter([TRIPLE], done) == pytest.approx(2.0)


def test_three_rounds_are_taken_however_late_it_is(tmp_path):
    rounds = Scripted(tmp_path, [1.0] * 20)
    assert rounds.run([PLAIN, TRIPLE], 9, deadline=0.0, beside=nothing) == LEAST_ROUNDS == 3
    assert rounds.run([PLAIN, TRIPLE], 2, deadline=0.0, beside=nothing) == 2


def test_whole_turns_are_kept_and_broken_ones_taken_anew(tmp_path):
    first = Scripted(tmp_path, [0.5, 0.5, 0.5])  # the script ends within the second round
    with pytest.raises(StopIteration):
        first.run([PLAIN, TRIPLE], 3, deadline=0.0, beside=nothing)
    again = Scripted(tmp_path, [0.5] * 3)
    assert again.run([PLAIN, TRIPLE], 3, deadline=0.0, beside=nothing) == 3
    assert again.decoded == 6  # three of six turns, both contenders each


def test_another_number_of_samples_is_another_turn(tmp_path):
    Scripted(tmp_path, [0.5] * 2).run([PLAIN, TRIPLE], 1, deadline=0.0, beside=nothing)
    wide = {name: own * 2 for name, own in SAMPLES.items()}
    other = Scripted(tmp_path, [0.5] * 2, wide)
    other.run([PLAIN, TRIPLE], 1, deadline=0.0, beside=nothing)
    assert other.decoded == 4
