"""Predictions on made tables: batches that shrink, step times between points, recommendations."""

from __future__ import annotations

import pytest

from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune.grid import FREE, coarse, grid
from trtla.tune.prediction import ALL, Predictor, batch_seconds, best
from trtla.tune.recommendation import recommend
from trtla.tune.replay import Steps
from trtla.tune.samples import Sample
from trtla.tune.step_time import StepTime, Timed, knee
from trtla.tune.verification import Verified


class Clock:
    """A step takes `base` + `token` for each fed token; a prompt nothing."""

    def __init__(self, base: float, token: float) -> None:
        self.base, self.token = base, token

    def seconds(self, sequences, fed_each, usual_each):
        return self.base + self.token * sequences * fed_each

    def prefill_s(self, prompt_tokens, sequences, fed_each):
        return 0.0


SAMPLES = [Sample(c, i, (1, 2), SamplingParams(64)) for c in ("code", "chat") for i in range(2)]


def steps_of(triple, sample):
    """S grows with each size, ever more slowly; code accepts more than chat."""
    w, n, g = triple.as_tuple()
    gain = 1.0 if sample.category == "code" else 0.5
    speed = 1.0 if n == 1 else min(n, 1.0 + gain * (n - 1) ** 0.5 * (w * g) ** 0.25)
    steps = round(640 / speed)
    return Steps(640, steps, steps * triple.max_decoding_tokens), "measured"


def rows(clock, sizes=(1,), triples=None):
    predictor = Predictor(SAMPLES, {"code": clock, "chat": clock}, steps_of)
    return predictor.rows(triples or grid(LookaheadConfig(7, 7, 7)), sizes)


def test_a_batch_shrinks_as_its_requests_end():
    clock = Clock(1.0, 0.1)
    requests = [Steps(9, 2, 8), Steps(9, 5, 10), Steps(0, 0, 0)]
    both, alone = 1.0 + 0.1 * (4.0 + 2.0), 1.0 + 0.1 * 2.0
    assert batch_seconds(clock, requests, 6) == pytest.approx(2 * both + 3 * alone)


def test_free_tokens_make_the_largest_triple_best():
    found = recommend(rows(Clock(1.0, 0.0)), ())
    assert found.lookahead == LookaheadConfig(7, 7, 7)
    expected = rows(Clock(1.0, 0.0), triples=[found.lookahead, AUTOREGRESSIVE])
    assert found.predicted_speedup == best(expected, ALL, 1)[0].predicted_speedup > 3


def test_where_every_token_costs_a_step_plain_decoding_is_best():
    found = recommend(rows(Clock(0.0, 1.0)), ())
    assert found.lookahead == AUTOREGRESSIVE
    assert found.predicted_speedup == 1.0


def test_the_answer_shrinks_with_the_batch():
    found = recommend(rows(Clock(16.0, 1.0), sizes=(1, 8, 64)), ())
    sizes = [row.lookahead.max_draft_len for row in found.by_batch_size]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_speed_ups_are_ratios_of_whole_times():
    clock, triple = Clock(1.0, 0.25), LookaheadConfig(2, 3, 2)
    own = {row.category: row for row in rows(clock, triples=[AUTOREGRESSIVE, triple])
           if row.lookahead == triple}  # fmt: skip
    code, chat = (steps_of(triple, sample)[0].steps for sample in (SAMPLES[0], SAMPLES[2]))
    step, plain = 1.0 + 0.25 * 8, 640 * 1.25
    assert own["code"].predicted_speedup == pytest.approx(plain / (code * step))
    assert own[ALL].predicted_speedup == pytest.approx(2 * plain / ((code + chat) * step))
    assert own[ALL].tokens_per_step == pytest.approx(2 * 640 / (code + chat))


def test_what_was_measured_wins_over_what_was_predicted():
    table, large = rows(Clock(1.0, 0.0)), LookaheadConfig(7, 7, 7)

    def real(triple, speedup):
        return Verified(str(triple), triple, ALL, 1, speedup, 2.0)

    small = LookaheadConfig(2, 2, 2)
    plain = real(AUTOREGRESSIVE, 1.0)
    found = recommend(table, [plain, real(large, 1.1), real(small, 1.3)])
    assert (found.lookahead, found.measured_speedup) == (small, 1.3)
    nothing = recommend(table, [plain, real(large, 0.8), real(small, 1.01)])
    assert (nothing.lookahead, nothing.measured_speedup) == (AUTOREGRESSIVE, 1.0)


TABLE = CostTable(((1, ((1, 1.0), (2, 1.2), (4, 1.3), (8, 2.0))), (4, ((4, 2.0), (8, 4.0)))))


def test_step_times_are_the_tables_where_steps_are():
    clock = StepTime(TABLE, [Timed(1, 1.0, 1.0, 1.5, 9.0, 3.0), Timed(1, 4.0, 2.6, 3.6, 12.0, 3.0)])
    assert clock.seconds(1, 1.0, 1.0) == pytest.approx(1.0 + 0.5)
    assert clock.seconds(1, 4.0, 4.0) == pytest.approx(2.6 + 1.0)  # twice the table's, 1.0 outside
    assert clock.seconds(1, 2.0, 2.0) == pytest.approx(1.2 * 1.5 + 0.75)  # halfway in the logarithm
    assert clock.seconds(1, 8.0, 8.0) == pytest.approx(2.0 * 2.0 + 1.0)  # beyond the last one
    assert clock.prefill_s(5, 1, 1.0) == pytest.approx(15.0)  # 3 a token, no drafters
    assert clock.prefill_s(5, 1, 9.0) == pytest.approx(20.0)


def test_a_step_that_feeds_less_than_usual_costs_the_usual_host_time():
    clock = StepTime(TABLE, [Timed(1, 1.0, 1.0, 1.5, 9.0, 3.0), Timed(1, 4.0, 2.6, 3.6, 12.0, 3.0)])
    assert clock.seconds(1, 1.0, 4.0) == pytest.approx(1.0 * 2.0 + 1.0)


def test_steps_are_held_against_the_table_one_by_one():
    uneven = Timed(1, 4.5, 3.0, 4.0, 9.0, 3.0, (1.0, 8.0))
    assert uneven.table_s(TABLE) == pytest.approx((1.0 + 2.0) / 2)
    clock = StepTime(TABLE, [uneven])
    assert clock.seconds(1, 8.0, 4.5) == pytest.approx(2.0 * 2.0 + 1.0)


def test_a_request_is_the_sum_of_its_own_steps():
    clock = StepTime(TABLE, [Timed(1, 4.5, 1.5, 2.0, 0.0, 3.0, (1.0, 8.0))])
    uneven, even = Steps(9, 2, 9, (1, 8)), Steps(9, 2, 9)
    assert batch_seconds(clock, [uneven], 0) == pytest.approx(1.0 + 2.0 + 2 * 0.5)
    assert batch_seconds(clock, [even], 0) == pytest.approx(2 * TABLE.seconds(4.5) + 2 * 0.5)


def test_between_batch_sizes_step_times_are_linear():
    clock = StepTime(TABLE, [Timed(1, 1.0, 1.0, 1.0, 1.0, 1.0), Timed(4, 4.0, 2.0, 4.0, 1.0, 1.0)])
    assert clock.seconds(2, 1.0, 1.0) == pytest.approx(1.0 + (4.0 - 1.0) / 3)
    assert clock.seconds(9, 1.0, 1.0) == pytest.approx(clock.seconds(4, 1.0, 1.0))


def test_no_step_at_all_is_refused():
    with pytest.raises(ValueError, match="no real steps"):
        StepTime(TABLE, [])


def test_the_knee_is_the_last_cheap_token():
    assert knee(TABLE) == 3  # 1.25 at 3 tokens, 1.3 at 4
    assert knee(CostTable.of([(1, 1.0), (64, 1.1)])) == 64
    assert knee(CostTable.of([(1, 1.0), (2, 2.0)])) == 1


def test_the_grid_keeps_to_the_limit_component_by_component():
    limit = LookaheadConfig(6, 4, 2)
    found = grid(limit)
    assert found[0] == AUTOREGRESSIVE
    assert limit in found
    assert all(triple.fits(limit) for triple in found)
    assert len(set(found)) == len(found)
    assert grid(AUTOREGRESSIVE) == [AUTOREGRESSIVE]
    assert max(triple.max_draft_len for triple in grid(FREE)) <= 127
    assert set(coarse(found)) < set(found)
