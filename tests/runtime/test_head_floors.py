"""Drafts of the shipped head on code: tokens of a step, and how far its nodes keep their promises.

Bars are a little below today's figures, as in `test_tree_floors.py`. Costs of steps are fixed, so
the figures depend on the head and the trees alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import trtla
from tests.support.compiled import needs_compiler
from trtla import LLM, SamplingParams
from trtla.runtime.stats import SourceCounts
from trtla.settings.drafting import NO_DRAFTER, SOURCES, DrafterSettings, DraftOptions

ASSETS = Path(trtla.__file__).parent / "assets"
HEAD = DrafterSettings((f"head:{ASSETS / 'tiny-head'}",))
AUTO = DrafterSettings()
PROMPTS, LENGTH, NODES = 4, 80, 8

pytestmark = needs_compiler


@dataclass
class Figures:
    """What the prompts took."""

    tokens: int = 0
    steps: int = 0
    sources: dict[str, SourceCounts] = field(default_factory=lambda: defaultdict(SourceCounts))

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


def prompts() -> list[str]:
    lines = (ASSETS / "bench" / "code.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[:PROMPTS]]


@cache
def decoded(temperature: float, sources: tuple[str, ...]) -> list[Figures]:
    """Decode with the head, and with auto alone; every text is plain decoding's."""
    options = DraftOptions(nodes=NODES, sources=sources)
    figures = [Figures(), Figures()]
    with LLM(
        ASSETS / "tiny-llama", heads=[HEAD.head], dtype="float32", draft_options=options
    ) as llm:
        for seed, prompt in enumerate(prompts()):
            how = SamplingParams(LENGTH, temperature, seed=seed)
            (plain,) = llm.generate([prompt], [how], drafter=NO_DRAFTER)
            for drafter, counted in zip((HEAD, AUTO), figures, strict=True):
                (done,) = llm.generate([prompt], [how], drafter=drafter, private=True)
                assert done.output_ids == plain.output_ids
                counted.tokens += len(done.output_ids) - 1
                counted.steps += done.stats.steps
                for name, counts in (done.stats.sources or {}).items():
                    counted.sources[name] += counts
    return figures


@pytest.mark.parametrize(
    ("temperature", "alone", "beside", "gain"), [(0.0, 2.4, 4.0, 0.4), (0.8, 2.0, 2.3, 0.4)]
)
def test_a_step_with_the_head_brings_at_least_so_many_tokens(
    temperature: float, alone: float, beside: float, gain: float
) -> None:
    """Alone, beside auto's other sources, and more than these alone."""
    by_head = decoded(temperature, ("head",))[0]
    with_all, without = decoded(temperature, SOURCES)
    print(by_head.tokens_per_step, with_all.tokens_per_step, without.tokens_per_step)
    assert by_head.tokens_per_step >= alone
    assert with_all.tokens_per_step >= beside
    assert with_all.tokens_per_step - without.tokens_per_step >= gain


def test_the_head_s_nodes_come_true_as_often_as_they_promise() -> None:
    counts = SourceCounts()
    for temperature in (0.0, 0.8):
        counts += decoded(temperature, ("head",))[0].sources["head"]
    assert 0.9 <= counts.calibration <= 1.1
    assert sum(counts.accepted) > 300
