"""Only the smallest useful measurement may exceed the budget, and a note says how long it takes."""

from __future__ import annotations

import json

from tests.tune.conftest import LIMIT
from trtla.data.prompt_sets import load_sets
from trtla.settings.executor import ExecutorOptions
from trtla.settings.sampling import SamplingParams
from trtla.tune.search import TuneSettings
from trtla.tune.tuner import FILE, tune


def test_without_a_budget_the_least_is_measured_and_said(tiny_llama, tmp_path):
    notes: list[str] = []
    settings = TuneSettings(
        model=str(tiny_llama),
        engine="tiny",
        limit=LIMIT,
        options=ExecutorOptions(lookahead=LIMIT),
        sets=tuple(load_sets(("code", "chat"), (), 3)),
        sampling=SamplingParams(8),
        batch_sizes=(1, 2),
        budget_s=1e-6,
        rounds=15,
        output_dir=tmp_path,
    )
    found = tune(settings, notes.append)
    assert any("too small: the smallest useful measurement takes about" in note for note in notes)
    assert "batch size 2 is predicted only: the budget is small" in notes
    assert not found.finished
    assert {row.lookahead for row in found.grid} == {(1, 1, 0), (1, 2, 1)}
    ran = [(one.lookahead, one.category, one.batch_size) for one in found.verified]
    triples = [(1, 1, 0), (1, 2, 1)]
    assert ran == [(triple, name, 1) for name in ("code", "chat", "all") for triple in triples]
    assert {one.drafter for one in found.alternatives} == {"auto"}  # the default, to beat
    names = [json.loads(line)["name"] for line in (tmp_path / FILE).read_text().splitlines()]
    counts = {kind: sum(name.startswith(kind) for name in names) for kind in ("run", "turn")}
    assert counts == {"run": 2, "turn": 3}  # a sample of each category; three turns of them
