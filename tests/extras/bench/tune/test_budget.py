"""A tuning ends when its budget is over, or is refused at once where the least does not fit."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from tests.extras.bench.tune.conftest import LIMIT, make_groups
from trtla import UsageError
from trtla.data.prompt_sets import load_sets
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.budget import requests_s, turn_s
from trtla.extras.bench.tune.grid import TuneSettings
from trtla.extras.bench.tune.tuner import FILE, tune
from trtla.runtime.costs import CostTable
from trtla.settings.executor import ExecutorOptions
from trtla.settings.sampling import SamplingParams

TICK_S = 0.2


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times on a clock that goes on by 0.2 s whenever it is looked at."""
    times: list[float] = []
    ticking = count(100.0, TICK_S)

    def now() -> float:
        times.append(next(ticking))
        return times[-1]

    monkeypatch.setattr(clock, "now", now)
    return times


def settings(model: Path, folder: Path, budget_s: float) -> TuneSettings:
    return TuneSettings(
        model=str(model),
        engine="tiny",
        limit=LIMIT,
        options=ExecutorOptions(lookahead=LIMIT),
        sets=tuple(load_sets(("code", "chat"), (), 2)),
        sampling=SamplingParams(8),
        batch_sizes=(1, 2),
        budget_s=budget_s,
        rounds=3,
        output_dir=folder,
    )


def kinds(folder: Path) -> dict[str, int]:
    """How many costs, turns of the search and turns of contests are kept."""
    lines = (folder / FILE).read_text().splitlines()
    names = [json.loads(line)["name"].split() for line in lines]
    turns = [name for name in names if name[0] == "turn"]
    searched = sum(name[2] == "0" for name in turns)
    return {
        "costs": len(names) - len(turns), "search": searched, "turn": len(turns) - searched,
    }  # fmt: skip


def test_what_does_not_fit_is_refused_when_costs_are_known(tiny_llama, tmp_path, ticks):
    with pytest.raises(UsageError, match=r"a budget of 0\.01 s is too small: the") as caught:
        tune(settings(tiny_llama, tmp_path, 0.01), lambda text: None)
    assert " takes about " in caught.value.message
    assert "--budget" in (caught.value.hint or "")
    assert kinds(tmp_path) == {"costs": 2, "search": 0, "turn": 0}
    assert len(ticks) < 10


def test_nothing_begins_when_the_budget_is_over(tiny_llama, tmp_path, ticks):
    notes: list[str] = []
    found = tune(settings(tiny_llama, tmp_path, 10.0), notes.append)
    assert found.time_s <= 10.0 + 20 * TICK_S
    assert not found.finished
    assert "the search's time was over: the same command with a larger --budget resumes" in notes
    first = kinds(tmp_path)
    assert first["search"] > 2
    assert 2 <= first["turn"] <= 2 * 6  # of both categories
    assert {row.batch_size for row in found.rows} <= {1, 2}
    assert {row.arm for row in found.rows} >= {"ar", "lookahead auto"}  # the default, to beat


def test_what_requests_take_at_most(llm):
    costs = CostTable.of([(1, 1.0), (8, 8.0)])
    groups = make_groups(llm, 2, length=4)
    sample = groups["code"][0]
    alone = requests_s(costs, [sample], LIMIT, at_a_time=1)
    assert alone == pytest.approx(len(sample.prompt) + 4 * LIMIT.max_decoding_tokens)
    assert turn_s(costs, groups, 2, LIMIT) > 2 * alone
