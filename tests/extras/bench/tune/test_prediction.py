"""Predictions on made tables, and what is recommended."""

from __future__ import annotations

import pytest

from trtla.extras.bench.documents import EVERY_CATEGORY
from trtla.extras.bench.tune.grid import FREE, Sample, Steps, coarse
from trtla.extras.bench.tune.prediction import Predictor, knee, ranked, recommend
from trtla.results.rows import Cell, Row
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

GROUPS = {
    c: [Sample(c, i, (1,) * 10, SamplingParams(641)) for i in range(2)] for c in ("code", "chat")
}
PLAIN = AUTOREGRESSIVE.as_tuple()
CELL = Cell(
    device="cpu", dtype="float32", threads=1, batch_size=1, temperature=0.0, category=EVERY_CATEGORY
)


def steps_of(triple, sample):
    """S grows with each size, ever more slowly; code accepts more than chat."""
    w, n, g = triple.as_tuple()
    gain = 1.0 if sample.category == "code" else 0.5
    steps = round(640 / min(n, 1.0 + gain * (n - 1) ** 0.5 * (w * g) ** 0.25))
    return Steps(640, steps, steps * triple.max_decoding_tokens)


def made(base, token, counts=(1, 2, 4, 16)):
    """A step takes `base` + `token` for each fed token."""
    return CostTable(
        tuple((n, tuple((t, base + token * t) for t in (n, 2 * n, 256 * n))) for n in counts)
    )


def measured(arm, speed, category=EVERY_CATEGORY, tokens_per_step=2.0):
    triple = f"lookahead {','.join(map(str, arm))}" if isinstance(arm, tuple) else arm
    name, cell = "ar" if arm == PLAIN else triple, CELL.model_copy(update={"category": category})
    return Row.fill(cell, arm=name, speedup_vs_ar=speed, tokens_per_step=tokens_per_step)


def rows(table, sizes=(1,), triples=None, groups=GROUPS):
    samples = [one for own in groups.values() for one in own]
    found = {t: {s: steps_of(t, s) for s in samples} for t in triples or coarse(FREE)}
    return Predictor(CELL, groups, found, table).rows(sizes)


def test_free_tokens_make_a_large_triple_best():
    found = recommend(rows(made(1.0, 0.0)))
    assert found.lookahead == (7, 7, 7)
    assert found.predicted_speedup > 3


def test_where_every_token_costs_a_step_plain_decoding_is_best():
    found = recommend(rows(made(0.0, 1.0)))
    assert (found.lookahead, found.predicted_speedup) == (PLAIN, 1.0)


def test_the_answer_shrinks_with_the_batch():
    found = recommend(rows(made(16.0, 1.0), sizes=(1, 4, 16)))
    sizes = [LookaheadConfig(*row.lookahead).max_draft_len for row in found.by_batch_size]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_speed_ups_are_ratios_of_prompts_and_steps(size):
    triple = LookaheadConfig(2, 3, 2)
    table = rows(made(1.0, 0.25), [size], [triple])
    own = {row.category: row for row in table if row.triple == triple.as_tuple()}
    code, chat = (steps_of(triple, GROUPS[name][0]).steps for name in ("code", "chat"))
    prompt, step, one = (1.0 + 0.25 * size * fed for fed in (10, triple.max_decoding_tokens, 1))
    plain = prompt + 640 * one
    assert own["code"].predicted_speedup == pytest.approx(plain / (prompt + code * step), abs=1e-4)
    together = 2 * plain / (2 * prompt + (code + chat) * step)
    assert own[EVERY_CATEGORY].predicted_speedup == pytest.approx(together, abs=1e-4)
    assert own[EVERY_CATEGORY].tokens_per_step == pytest.approx(2 * 640 / (code + chat), abs=1e-4)
    assert own[EVERY_CATEGORY].fed_per_step == triple.max_decoding_tokens


def test_a_triple_is_judged_on_the_samples_that_it_ran_on():
    triple, sample = LookaheadConfig(1, 2, 1), GROUPS["code"][0]
    found = {triple: {sample: Steps(640, 320, 640)}}
    table = Predictor(CELL, GROUPS, found, CostTable.of([(1, 1.0), (99, 1.0)])).rows([1])
    (row,) = [row for row in table if row.triple == (1, 2, 1)]
    assert row.category == "code"  # of all together nothing is known
    assert row.predicted_speedup == pytest.approx(641 / 321, abs=1e-4)


def test_what_was_measured_is_recommended_by_its_speed():
    def found(*speeds):
        return list(map(measured, [PLAIN, (7, 7, 7), (1, 2, 3)], speeds))

    chosen = recommend(found(1.0, 1.1, 1.3))
    assert (chosen.lookahead, chosen.measured_speedup) == ((1, 2, 3), 1.3)
    (of_size,) = chosen.by_batch_size
    assert (of_size.lookahead, of_size.measured_speedup) == ((1, 2, 3), 1.3)
    chosen = recommend(found(1.0, 0.8, 1.01))
    assert (chosen.lookahead, chosen.measured_speedup) == (PLAIN, 1.0)


def test_a_batch_size_without_time_has_its_prediction():
    predicted = [row for row in rows(made(1.0, 0.0), sizes=(1, 4)) if row.batch_size == 4]
    found = recommend([measured(PLAIN, 1.0), measured((1, 2, 3), 1.3), *predicted])
    assert [row.measured_speedup for row in found.by_batch_size] == [1.3, None]
    assert found.by_batch_size[1].lookahead == (7, 7, 7)
    assert found.by_batch_size[1].predicted_speedup > 3


@pytest.mark.parametrize(
    ("auto", "triple", "keeps"),
    [(1.24, 1.21, True), (1.21, 1.22, True), (1.21, 1.3, False), (0.99, 0.9, True),
     (0.9, 0.8, False), (0.9, 1.3, False), (None, 1.3, False), (None, 0.9, False)],
)  # fmt: skip
def test_auto_is_kept_unless_something_is_measured_ahead_of_it(auto, triple, keeps):
    found = [measured(PLAIN, 1.0), measured((1, 2, 3), triple)]
    found += [measured("lookahead auto", auto)] if auto else []
    found += [measured("prompt-lookup", 9.0)]
    chosen = recommend(found)
    assert (chosen.keep_auto, chosen.auto_speedup) == (keeps, auto)
    assert chosen.lookahead == ((1, 2, 3) if triple > 1.0 else PLAIN)  # the best fixed one
    (of_size,) = chosen.by_batch_size
    assert (of_size.keep_auto, of_size.auto_speedup) == (keeps, auto)


def test_of_equal_speed_the_smaller_triple_is_first():
    triples = [LookaheadConfig(7, 7, 7), LookaheadConfig(1, 2, 1)]
    sample = GROUPS["code"][0]
    found = {triple: {sample: Steps(640, 320, 320)} for triple in triples}
    table = Predictor(CELL, {"code": [sample]}, found, made(1.0, 1.0)).rows([1])
    assert [row.triple for row in ranked(table, "code", 1)] == [(1, 2, 1), (7, 7, 7), PLAIN]


def test_the_knee_is_the_last_cheap_token():
    assert knee(CostTable.of([(1, 1.0), (2, 1.2), (4, 1.3), (8, 2.0)])) == 3
    assert knee(CostTable.of([(1, 1.0), (64, 1.1)])) == 64
    assert knee(CostTable.of([(1, 1.0), (2, 2.0)])) == 1


def test_a_triple_that_saved_no_step_is_never_recommended():
    """Timings scatter: it can be measured ahead and still cannot be."""
    for steps, chosen in ((1.0, PLAIN), (1.1, (1, 2, 1))):
        ahead = [measured(PLAIN, 1.0, "a", 1.0), measured((1, 2, 1), 1.3, "a", steps)]
        assert recommend(ahead).lookahead == chosen
