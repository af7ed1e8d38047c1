"""Candidate trees where things go wrong: no answer, drafters that raise, memories that move."""

from __future__ import annotations

import math

import pytest

from tests.support.toys import hash_rule, plain, request, ruled, run
from tests.support.trees import GREEDY, learn, plan, top_rows
from trtla import SamplingParams, UsageError
from trtla.runtime.drafters.lookup import PromptLookupDrafter
from trtla.runtime.request import DraftMemory
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.drafting import DrafterSettings, DraftOptions

RULE = hash_rule(6, 2)


@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
def test_a_row_whose_only_possible_token_was_drawn(temperature):
    shared = SharedTrees(50)
    tree = shared.tree([1, 4], SamplingParams(temperature=temperature), ("recycling",), True)
    tree.commit([9], rows=top_rows([{9: 1.0, 11: 0.0, 12: 0.0}], [0], 0))
    assert all(math.isfinite(value) for value in plan(tree).values)
    tree.commit([9], rows=top_rows([{9: 1.0, 11: 1e-30, 12: 1e-31}], [0], 0))
    learn(shared, {(9, 9): {9: 1.0}})
    tree.commit([11])
    assert all(math.isfinite(value) for value in plan(tree).values)


def opened(vocab=6):
    return ruled(RULE, vocab, (4, 4, 4), options=DraftOptions(nodes=6))[0]


def test_a_memory_of_another_executor_is_refused():
    memory = DraftMemory()
    opened(vocab=6).use_memory(memory)
    other = opened(vocab=60)
    with pytest.raises(UsageError, match="another model"):
        other.use_memory(memory)


def test_a_drafter_that_raises_fails_its_request_alone(monkeypatch):
    propose = PromptLookupDrafter.propose

    def raising(self):
        if self._text[0] == 1:
            raise ValueError("no draft")
        return propose(self)

    monkeypatch.setattr(PromptLookupDrafter, "propose", raising)
    both = DrafterSettings(("prompt-lookup", "lookahead"))
    asked = [request([n, 1, 2], 40, None, n, adaptive=True, drafter=both) for n in (0, 1)]
    outputs = run(opened(), asked)
    assert outputs[1][-1].finish_reason == "failed"
    text = []
    for output in outputs[0]:  # what was committed before comes again
        text[output.start :] = output.new_tokens
    assert text == plain(RULE, [0, 1, 2], 40)


def test_counts_survive_a_new_beginning():
    executor = opened()
    executor.submit(request([1, 2, 3, 1, 2], 60, adaptive=True))
    for _ in range(10):
        executor.poll()
    executor._record.unfinished = True
    while outputs := executor.poll():
        stats = outputs[-1].stats
    assert stats.accepted > 0
    assert sum(sum(own.accepted) for own in stats.sources.values()) == stats.accepted


def test_tokens_of_an_encoder_have_no_positions():
    shared, params = SharedTrees(50), SamplingParams(temperature=1.0, seed=3)
    learn(shared, {(1, 2): dict.fromkeys(range(10), 0.1)})
    alone = shared.tree([1, 2], params, ("recycling",), True)
    behind = shared.tree([7, 8, 9, 1, 2], params, ("recycling",), True, 3)
    elsewhere = shared.tree([7, 8, 9, 1, 2], params, ("recycling",), True)
    tokens = [plan(tree, 5, 1).tokens for tree in (alone, behind, elsewhere)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_what_is_below_the_end_of_the_new_text_is_not_wrong():
    """Trees that learn from a text that goes on as they say hold nodes for no less likely."""
    shared, values = SharedTrees(50), []
    for _ in range(40):
        tree = shared.tree([1, 2, 3, 4, 5, 6] * 5, GREEDY, ("context",), True)
        values.append(plan(tree, 6).values[4])
        tree.commit([1])
    assert values[-1] > values[0]
