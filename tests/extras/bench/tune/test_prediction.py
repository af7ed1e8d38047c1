"""Predictions on made tables, and what is recommended."""

from __future__ import annotations

import pytest

from trtla.extras.bench.tune.grid import FREE, Sample, Steps, triples_within
from trtla.extras.bench.tune.prediction import predict, ranked, recommend
from trtla.results.rows import Cell, Row
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

SAMPLES = [Sample((1,) * 10, SamplingParams(641))] * 2
PLAIN = AUTOREGRESSIVE.as_tuple()


def cell(size=1):
    return Cell(
        device="cpu", dtype="float32", threads=1, batch_size=size, temperature=0.0, category="all"
    )


def steps_of(triple, gain):
    """S grows with each size, ever more slowly."""
    w, n, g = triple.as_tuple()
    steps = round(640 / min(n, 1.0 + gain * (n - 1) ** 0.5 * (w * g) ** 0.25))
    return Steps(640, steps, steps * triple.max_decoding_tokens)


def made(base, token, counts=(1, 2, 4, 16)):
    """A step takes `base` + `token` for each fed token."""
    return CostTable(
        tuple((n, tuple((t, base + token * t) for t in (n, 2 * n, 256 * n))) for n in counts)
    )


def measured(arm, speed, tokens_per_step=2.0):
    triple = f"lookahead {','.join(map(str, arm))}" if isinstance(arm, tuple) else arm
    name = "ar" if arm == PLAIN else triple
    return Row.fill(cell(), arm=name, speedup_vs_ar=speed, tokens_per_step=tokens_per_step)


def rows(table, size=1, triples=None):
    found = {t: [steps_of(t, 1.0), steps_of(t, 0.5)] for t in triples or triples_within(FREE)}
    return predict(cell(size), SAMPLES, found, table)


def test_free_tokens_make_a_large_triple_best():
    found = recommend(rows(made(1.0, 0.0)))
    assert found.lookahead == (7, 7, 7)
    assert found.predicted_speedup > 3


def test_where_every_token_costs_a_step_plain_decoding_is_best():
    found = recommend(rows(made(0.0, 1.0)))
    assert (found.lookahead, found.predicted_speedup) == (PLAIN, 1.0)


def test_the_answer_shrinks_with_the_batch():
    found = [recommend(rows(made(16.0, 1.0), size)) for size in (1, 4, 16)]
    sizes = [LookaheadConfig(*each.lookahead).max_draft_len for each in found]
    assert [each.batch_size for each in found] == [1, 4, 16]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_speed_ups_are_ratios_of_prompts_and_steps(size):
    triple = LookaheadConfig(2, 3, 2)
    plain, row = rows(made(1.0, 0.25), size, [triple])
    first, second = (steps_of(triple, gain).steps for gain in (1.0, 0.5))
    prompt, step, one = (1.0 + 0.25 * size * fed for fed in (10, triple.max_decoding_tokens, 1))
    expected = 2 * (prompt + 640 * one) / (2 * prompt + (first + second) * step)
    assert plain.predicted_speedup == 1.0
    assert row.predicted_speedup == pytest.approx(expected, abs=1e-4)
    assert row.tokens_per_step == pytest.approx(2 * 640 / (first + second), abs=1e-4)
    assert row.fed_per_step == triple.max_decoding_tokens


def test_what_was_measured_is_recommended_by_its_speed():
    def found(*speeds):
        return list(map(measured, [PLAIN, (7, 7, 7), (1, 2, 3)], speeds))

    chosen = recommend(found(1.0, 1.1, 1.3))
    assert (chosen.lookahead, chosen.measured_speedup) == ((1, 2, 3), 1.3)
    chosen = recommend(found(1.0, 0.8, 1.01))
    assert (chosen.lookahead, chosen.measured_speedup) == (PLAIN, 1.0)


@pytest.mark.parametrize(
    ("auto", "triple", "keeps"),
    [(1.24, 1.21, True), (1.21, 1.22, True), (1.21, 1.3, False), (0.99, 0.9, True),
     (0.9, 0.8, False), (0.9, 1.3, False), (None, 1.3, False), (None, 0.9, False)],
)  # fmt: skip
def test_auto_is_kept_unless_something_is_measured_ahead_of_it(auto, triple, keeps):
    found = [measured(PLAIN, 1.0), measured((1, 2, 3), triple)]
    found += [measured("lookahead auto", auto)] if auto else []
    chosen = recommend(found)
    assert (chosen.keep_auto, chosen.auto_speedup) == (keeps, auto)
    assert chosen.lookahead == ((1, 2, 3) if triple > 1.0 else PLAIN)  # the best fixed one


def test_of_equal_speed_the_smaller_triple_is_first():
    found = {LookaheadConfig(*sizes): [Steps(640, 320, 320)] for sizes in ((7, 7, 7), (1, 2, 1))}
    table = predict(cell(), SAMPLES[:1], found, made(1.0, 1.0))
    assert [row.triple for row in ranked(table)] == [(1, 2, 1), (7, 7, 7), PLAIN]


def test_a_triple_that_saved_no_step_is_never_recommended():
    """Timings scatter: it can be measured ahead and still cannot be."""
    for steps, chosen in ((1.0, PLAIN), (1.1, (1, 2, 1))):
        ahead = [measured(PLAIN, 1.0, 1.0), measured((1, 2, 1), 1.3, steps)]
        assert recommend(ahead).lookahead == chosen
