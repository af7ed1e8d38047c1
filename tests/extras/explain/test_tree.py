"""Auto's candidate tree as it is shown: sources, chances and fates of real runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extras.explain.support import numbers, record, unpainted
from tests.support.toys import greedy_scores, hash_rule, plain, request, run, toy_executor
from trtla import DraftOptions, LookaheadConfig
from trtla.extras.explain.picture import step_picture
from trtla.extras.explain.step_outcome import fates, outcome_of, tree_nodes
from trtla.extras.explain.text_view import step_lines
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Draft
from trtla.settings.drafting import PROPOSERS

RULE, VOCAB, PROMPT = hash_rule(5, 2), 5, [1, 2, 3, 1, 2]
FLAT = CostTable.of([(1, 0.01), (512, 0.01)])


def auto(count=40, **options):
    asked = request(PROMPT, count, adaptive=True)
    more = {"costs": FLAT, "options": DraftOptions(**options)}
    return record(greedy_scores(RULE, VOCAB), VOCAB, LookaheadConfig(3, 3, 3), asked, **more)


@pytest.mark.parametrize("nodes", [5, 12])  # what pays depends on the time that steps take
def test_a_watched_run_is_the_run_itself(nodes):
    told, fed = auto(nodes=nodes)
    assert list(told.completion.output_ids) == plain(RULE, PROMPT, 40)
    scores, triple = greedy_scores(RULE, VOCAB), LookaheadConfig(3, 3, 3)
    alone, model = toy_executor(
        scores, VOCAB, triple, costs=FLAT, options=DraftOptions(nodes=nodes)
    )
    run(alone, [request(PROMPT, 40, adaptive=True)])
    assert [step.draft.size for step in told.steps[1:]] == fed[1:] == model.fed[1:]
    assert max(fed[1:]) > 1
    assert told.is_tree


def test_fates_agree_with_the_counts_of_the_request():
    told, _ = auto(nodes=5)
    found = [
        (node.source, node.fate)
        for step in told.steps
        for node in tree_nodes(outcome_of(told, step))
    ]
    for name, counts in told.completion.stats.sources.items():
        own = [fate for source, fate in found if source == name]
        assert len(own) == sum(counts.fed)
        assert own.count("accepted") == sum(counts.accepted)
    assert {"accepted", "rejected", "not reached"} == {fate for _, fate in found}


def test_a_fed_window_is_shown_beside_the_tree():
    told, _ = auto()
    windowed = [step for step in told.steps if step.window is not None]
    assert windowed
    assert any(step.harvest for step in windowed)
    for step in windowed:
        assert step.draft.first_candidate - 1 <= len(step.window.tokens)
        lines = step_lines(told, step, numbers(told), unpainted)
        assert any(line.startswith("Window: W = 3 columns") for line in lines)
        assert sum(line.startswith("Candidate tree: ") for line in lines) == 1
    step_picture(told, windowed[-1], numbers(told), unpainted)


def test_the_tree_is_drawn_with_its_branches():
    """The target goes on with 1 2: of two branches that begin with 1 one is right."""
    told, _ = auto(count=4, nodes=0)
    context, rows, both = map(PROPOSERS.index, ("context", "recycling", "agreement"))
    draft = Draft(
        (1, 4, 2, 3, 0),
        (0, 0, 1, 1, 4),
        values=(0.9, 0.05, 0.3, 0.42, 0.4),
        sources=(context, rows, rows, both, context),
    )
    step = replace(told.steps[1], draft=draft, committed=(1, 2, 4))
    outcome = outcome_of(told, step)
    assert outcome.accepted_nodes == (1, 3)
    lines = [" ".join(line.split()) for line in step_lines(told, step, numbers(told), unpainted)]
    start = lines.index("token source chance fate")
    assert lines[start : start + 7] == [
        "token source chance fate",
        "├ 1 context 0.90 accepted ✓",
        "│ ├ 3 agreement 0.42 rejected ✗",
        "│ │ └ 0 context 0.40 not reached",
        "│ └ 2 recycling 0.30 accepted ✓",
        "└ 4 recycling 0.05 rejected ✗",
        "agreement: a text and likely tokens (recycled, or a head's) propose it",
    ]
    ended = replace(step, committed=(1,))  # the text ends within the draft
    assert fates(outcome_of(told, ended)) == [
        "accepted", "rejected", "not reached", "not reached", "not reached"
    ]  # fmt: skip
