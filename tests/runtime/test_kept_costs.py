"""Costs of steps before any was seen: what is shipped, and what an earlier process has kept."""

from __future__ import annotations

import pytest

from trtla import LLM, SamplingParams
from trtla.runtime.auto.kept import KeptCosts
from trtla.runtime.auto.shipped import shipped_costs
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.device import CPU
from trtla.runtime.models.cpu.levels import LEVELS
from trtla.runtime.threads import num_threads, set_threads

LEVEL_OF = {level.name: level for level in LEVELS["x86_64"]}
pytestmark = pytest.mark.usefixtures("measured_costs", "own_cache")


def taught(seconds=1.0):
    costs = StepCosts(shipped_costs(10**8, "Q4_1", CPU, integers=True))
    for tokens in 3 * (1, 8):
        costs.record(tokens, 1, seconds)
    return costs


def test_what_steps_took_survives_its_file(own_cache):
    kept, costs = KeptCosts({}, "float32", CPU), taught()
    assert kept.load() == {}
    kept.save(costs)
    assert kept.load() == costs.learnt()
    assert list(own_cache.rglob("*cost*")) == [kept.path]  # nothing temporary stays
    assert KeptCosts({}, "bfloat16", CPU).load() == {}


def test_a_level_that_the_processor_does_not_run_has_costs_of_its_own(monkeypatch):
    own = KeptCosts({}, "float32", CPU)
    monkeypatch.setenv("TRTLA_MARCH", "x86-64-v9")
    assert KeptCosts({}, "float32", CPU).key != own.key


@pytest.mark.parametrize("blocked", [True, False])
def test_nothing_is_kept_where_nothing_was_seen_or_can_be_written(blocked):
    kept = KeptCosts({}, "float32", CPU)
    if blocked:
        kept.path.mkdir(parents=True)
    kept.save(taught() if blocked else StepCosts(shipped_costs(1, "Q4_1", CPU, integers=True)))
    assert kept.load() == {}
    assert not kept.path.is_file()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '"text"', "{}", '{"format_version": 2, "key": "KEY", "rows": 7}',
        '{"format_version": 3, "key": "other", "sequences": {"1": {}}}',
        '{"format_version": 3, "key": "KEY", "sequences": 7}',
        '{"format_version": 3, "key": "KEY"}',
    ],
)  # fmt: skip
def test_broken_and_foreign_files_say_nothing_and_are_written_anew(text):
    kept = KeptCosts({}, "float32", CPU)
    kept.path.parent.mkdir(parents=True, exist_ok=True)
    kept.path.write_text(text.replace("KEY", kept.key))
    assert kept.load() == {}
    kept.save(taught())
    assert kept.load() == taught().learnt()


def test_numbers_that_no_step_has_shown_are_not_believed():
    table = shipped_costs(10**8, "Q4_1", CPU, integers=True)
    broken = {"1": {"plain": 10**400, "prices": {"8": -(10**400), "16": "1"}}}
    assert StepCosts(table, broken).seconds(8, 1) == StepCosts(table).seconds(8, 1)


def test_the_key_tells_threads_and_arithmetic_apart():
    before = num_threads()
    keys = {KeptCosts({}, arithmetic, CPU).key for arithmetic in ("float32", "bfloat16")}
    set_threads(before + 1)
    try:
        keys.add(KeptCosts({}, "float32", CPU).key)
    finally:
        set_threads(before)
    assert len(keys) == 3


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_no_forward_runs_but_those_of_requests(tiny_llama, monkeypatch, compiled):
    """Nobody waits for a measurement, in the first run and in the next."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    for _ in range(2):
        with LLM(tiny_llama, max_batch_size=4) as llm:
            stepper, ran = llm._executor._stepper, []
            forward = stepper.forward
            stepper.forward = lambda feeds: ran.append(len(feeds)) or forward(feeds)  # noqa: B023
            llm.generate("def f(", SamplingParams(max_output_len=8), "auto")
            assert len(ran) == llm.stats().steps
            assert set(ran) == {1}


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4-vnni", "x86-64-v4-amx"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q8_0", "IQ4_NL", "bfloat16", "float32"])
def test_what_is_shipped_never_falls_and_knows_each_size_up_to_16(monkeypatch, level, kind):
    monkeypatch.setattr("trtla.runtime.auto.shipped.chosen_level", lambda: LEVEL_OF[level])
    table = shipped_costs(7 * 10**8, kind, CPU, integers="Q" in kind)
    ((_, points),) = table.rows
    assert [tokens for tokens, _ in points[:16]] == [*range(1, 17)]
    assert table.seconds(2) < 1.8 * table.seconds(1)
    assert table.seconds(16) < 16 * table.seconds(1)


def test_of_one_billion_weights_with_vnni_it_is_no_less_than_was_measured(monkeypatch):
    """On a Xeon; a step that seems cheap costs more than one that seems dear."""
    monkeypatch.setattr(
        "trtla.runtime.auto.shipped.chosen_level", lambda: LEVEL_OF["x86-64-v4-vnni"]
    )
    before = num_threads()
    set_threads(2)
    try:
        table = shipped_costs(695_000_000, "Q4_0", CPU, integers=True)
    finally:
        set_threads(before)
    plain = table.seconds(1)
    measured = {2: 24.5, 4: 27.3, 6: 31.0, 8: 41.2, 12: 50.7, 16: 65.6, 32: 119.6}
    for tokens, milliseconds in measured.items():
        assert 0.9 < table.seconds(tokens) / plain / (milliseconds / 22.6) < 1.7
