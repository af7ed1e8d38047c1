"""Whole tunings of the shipped model, on a clock of known costs of steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtla import LLM, LookaheadConfig, SamplingParams, UsageError
from trtla.data.prompt_sets import load_sets
from trtla.extras.bench.tune.grid import FREE, TuneSettings, triples_within
from trtla.extras.bench.tune.tuner import tune
from trtla.measuring.arms import EngineArm
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

PLENTY_S = 1e9
LIMIT = LookaheadConfig(5, 4, 5)
SAMPLING = SamplingParams(24)


def settings(model: Path, budget_s: float, **other) -> TuneSettings:
    return TuneSettings(
        model=str(model),
        limit=LIMIT,
        options=ExecutorOptions(lookahead=LIMIT, dtype="float32"),
        sets=tuple(load_sets(("code", "chat"), (), 1)),
        sampling=SAMPLING,
        budget_s=budget_s,
        **other,
    )


def tuned(model: Path, clock, budget_s: float = PLENTY_S, notes=None, **other):
    note = (lambda text: None) if notes is None else notes.append
    return tune(settings(model, budget_s, **other), note, now=clock.now)


def test_free_tokens_have_the_fastest_of_all_triples_recommended(tiny_llama, costing):
    clock = costing(1.0, 0.0)
    found = tuned(tiny_llama, clock)
    best = found.recommendation
    measured = {row.arm: row for row in found.rows if row.speedup_vs_ar is not None}
    assert set(measured) > {"ar", "lookahead auto"}
    assert len(measured) == 6
    fixed = [row for row in measured.values() if row.triple]
    assert best.measured_speedup == max(row.speedup_vs_ar for row in fixed) > 1.3
    assert best.auto_speedup == measured["lookahead auto"].speedup_vs_ar
    with LLM(tiny_llama, lookahead=LIMIT, dtype="float32") as llm:
        prompts = [
            llm.encode(text) for one in load_sets(("code", "chat"), (), 1) for text in one.texts
        ]
        llm.end_ids = frozenset()
        seconds = {}
        for triple in (AUTOREGRESSIVE, *triples_within(LIMIT)):
            before, arm = clock.now(), EngineArm(llm, triple)
            for prompt in prompts:
                arm.decode([prompt], [SAMPLING])
            seconds[triple] = clock.now() - before
    speeds = {triple: seconds[AUTOREGRESSIVE] / took for triple, took in seconds.items()}
    assert speeds[LookaheadConfig(*best.lookahead)] >= 0.9 * max(speeds.values())


def test_where_every_token_costs_a_step_plain_decoding_is_recommended(tiny_llama, costing):
    best = tuned(tiny_llama, costing(0.0, 1.0)).recommendation
    assert best.lookahead == AUTOREGRESSIVE.as_tuple()
    assert (best.measured_speedup, best.keep_auto) == (1.0, False)


def test_every_text_is_plain_decodings_and_predictions_are_kept(tiny_llama, costing):
    found = tuned(tiny_llama, costing(1.0, 0.01), batch_sizes=(3,))
    triples = [row for row in found.rows if row.triple]
    assert len(triples) == 1 + len(triples_within(LIMIT))
    assert all(row.predicted_speedup for row in triples)
    measured = [row for row in found.rows if row.speedup_vs_ar]
    assert all(row.equal_texts == row.texts > 0 for row in measured)
    assert {row.batch_size for row in found.rows} == {3}


@pytest.mark.parametrize("costs", [(0.1, 0.0), (0.1, 0.005), (0.01, 0.01)])
def test_the_budget_holds_or_is_refused(tiny_llama, costing, costs):
    clock = costing(*costs)
    with pytest.raises(UsageError, match=r"a budget of 10 s is too small: the") as caught:
        tuned(tiny_llama, clock, 10.0)
    assert "--budget" in (caught.value.hint or "")
    assert clock.now() == 0.0
    least = float(re.search(r"about (\d+) s", caught.value.message)[1])
    counts, notes = [], list[str]()
    for budget_s in (least, 1.5 * least, 4 * least):
        clock.seconds = 0.0
        found = tuned(tiny_llama, clock, budget_s, notes)
        assert found.time_s <= budget_s
        counts.append(sum(row.speedup_vs_ar is not None for row in found.rows))
    assert counts == sorted(counts)
    assert counts[0] >= 3
    assert any("triples fit into the budget; raise --budget" in note for note in notes)


def test_a_gpu_that_is_not_here_has_predictions_only(tiny_llama, costing):
    found = tuned(tiny_llama, costing(1.0, 0.0), gpu="h100")
    assert all(row.speedup_vs_ar is None for row in found.rows)
    assert found.recommendation.measured_speedup is None
    assert found.recommendation.predicted_speedup > 1.3  # tokens are nearly free there
    assert "not a measurement" in found.settings["costs"]


def test_triples_keep_to_the_limit_component_by_component():
    assert len(triples_within(FREE)) == 23  # 15,7,15 would feed more than 128 tokens
    assert {LookaheadConfig(7, 7, 7), LookaheadConfig(15, 5, 15)} < set(triples_within(FREE))
    limit = LookaheadConfig(6, 4, 2)
    found = triples_within(limit)
    assert limit in found
    assert all(triple.fits(limit) for triple in found)
    assert len(set(found)) == len(found)
    assert triples_within(AUTOREGRESSIVE) == triples_within(LookaheadConfig(3, 3, 0)) == []
