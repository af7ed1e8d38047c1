"""Drafts of real texts: tokens of a step, and how far nodes keep their promises.

The texts are recorded (`tests/support/real_texts.py`), so the figures depend on the trees alone.
Bars are a little below today's figures. Where a change lowers one for good reason, say so and
lower its bar in the same commit; raise it where drafts became better.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.support.real_texts import RealText, real_texts
from tests.support.trees import accepted_path
from trtla.runtime.tree.library import Planner, SharedTrees, Tree
from trtla.settings.drafting import PROPOSERS

SOURCES = ("context", "requests", "recycling")
DEPTH = 16
BOUNDS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass
class Counts:
    """What a model's texts took with trees of some nodes."""

    tokens: dict[bool, int] = field(default_factory=lambda: defaultdict(int))
    """Of sampled texts, and of greedy ones."""
    steps: dict[bool, int] = field(default_factory=lambda: defaultdict(int))
    nodes: list[tuple[float, bool, str]] = field(default_factory=list)
    """Promised chance, outcome and proposer of each node."""


@cache
def decoded(model: str, nodes: int) -> Counts:
    """Go through the texts one after the other, as requests that share trees."""
    vocab, texts = real_texts(model)
    shared, counts = SharedTrees(vocab), Counts()
    for text in texts:
        tree = shared.tree(text.prompt, text.sampling, SOURCES, True)
        place = 0
        while place < len(text.output):
            place += step(tree, text, place, nodes, counts)
        shared.add_text(text.output)
    return counts


def step(tree: Tree, text: RealText, place: int, nodes: int, counts: Counts) -> int:
    """Feed a draft of so many nodes; the tokens that the text goes on by."""
    left = len(text.output) - place
    (draft,) = Planner().plan([tree], [nodes], [min(DEPTH, left - 1)], nodes)
    path = accepted_path(draft, text.output[place:-1])
    for node, (value, source) in enumerate(zip(draft.values, draft.sources, strict=True), 1):
        counts.nodes.append((value, node in path, PROPOSERS[source]))
    new = text.output[place : place + len(path) + 1]
    tree.commit(new, len(path), text.rows(place, path))
    counts.tokens[not text.sampling.greedy] += len(new)
    counts.steps[not text.sampling.greedy] += 1
    return len(new)


@pytest.mark.parametrize(
    ("model", "nodes", "greedy", "sampled"),
    [
        ("smollm2", 4, 1.94, 1.92),
        ("smollm2", 8, 2.23, 2.17),
        ("smollm2", 32, 2.63, 2.72),
        ("tiny-llama", 8, 4.04, 3.49),
        ("tiny-llama", 32, 5.18, 4.49),
    ],
)
def test_a_step_of_a_real_text_brings_at_least_so_many_tokens(
    model: str, nodes: int, greedy: float, sampled: float
) -> None:
    counts = decoded(model, nodes)
    assert counts.tokens[False] / counts.steps[False] >= greedy
    assert counts.tokens[True] / counts.steps[True] >= sampled


def mean_error(nodes: list[tuple[float, bool, str]]) -> float:
    """The distance between promised and actual chance, on average over bins of nodes."""
    bins = defaultdict(list)
    for value, hit, _ in nodes:
        bins[sum(value >= bound for bound in BOUNDS)].append(hit - value)
    return sum(abs(sum(errors)) for errors in bins.values()) / len(nodes)


@pytest.mark.parametrize(
    ("model", "nodes", "most"),
    [
        ("smollm2", 8, 0.013),
        ("smollm2", 32, 0.007),
        ("tiny-llama", 8, 0.052),
        ("tiny-llama", 32, 0.027),
    ],
)
def test_nodes_of_real_texts_come_true_as_often_as_they_promise(
    model: str, nodes: int, most: float
) -> None:
    counts = decoded(model, nodes)
    assert mean_error(counts.nodes) <= most


def test_every_proposer_keeps_its_promises() -> None:
    promised, kept = defaultdict(float), defaultdict(int)
    for value, hit, source in decoded("smollm2", 32).nodes:
        promised[source] += value
        kept[source] += hit
    assert {name for name, count in kept.items() if count > 100} == {"context", "agreement"}
    for source, count in kept.items():
        if count > 100:
            assert promised[source] == pytest.approx(count, rel=0.15), source
    assert sum(promised.values()) == pytest.approx(sum(kept.values()), rel=0.02)
