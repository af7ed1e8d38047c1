"""What each source of the candidate tree did: counts of requests, and the memory of drafts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.toys import (
    greedy_scores,
    hash_rule,
    plain,
    request,
    run,
    tokens_of,
    toy_executor,
)
from trtla import LLM, DraftOptions, LookaheadConfig, SamplingParams, UsageError
from trtla.measuring.arms import EngineArm
from trtla.results.metrics import total
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Draft
from trtla.runtime.drafters.lookahead import LookaheadWindow
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.request import DraftMemory, DraftRecorder, RecorderWatch
from trtla.runtime.stats import SourceCounts
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.drafting import PROPOSERS
from trtla.settings.lookahead import AUTOREGRESSIVE

FLAT = CostTable.of([(1, 0.01), (512, 0.01)])
RULE, VOCAB = hash_rule(5, 2), 5


def executor(**options):
    scores, triple = greedy_scores(RULE, VOCAB), LookaheadConfig(5, 5, 5)
    return toy_executor(scores, VOCAB, triple, costs=FLAT, options=DraftOptions(**options))[0]


def fed(outputs):
    return outputs[-1].stats.fed


def test_counts_of_a_request_add_up_to_its_own():
    watch = RecorderWatch(DraftRecorder)
    asked = replace(request([1, 2, 3, 1, 2], 60, adaptive=True), watch=watch)
    outputs = run(executor(nodes=6), [asked])[0]
    stats, counts = outputs[-1].stats, outputs[-1].stats.sources
    assert set(counts) <= set(PROPOSERS)
    assert len(counts) > 1
    sums = total(counts.values())
    assert sum(sums.fed) == stats.drafted == sum(sums.proposed) > 0
    assert sum(sums.accepted) == stats.accepted > 0
    drafts = [forward.draft for forward in watch.recorders[0].forwards]
    chances = sum(sum(draft.values) for draft in drafts)
    assert sums.expected == pytest.approx(chances, rel=1e-4)
    by_depth = Counter(len(d.path(node)) for d in drafts for node in range(1, d.size))
    assert sums.fed == tuple(by_depth[depth] for depth in range(1, len(by_depth) + 1))


def test_outputs_name_the_sources_of_accepted_tokens():
    outputs = run(executor(nodes=6), [request([1, 2, 3, 1, 2], 60, adaptive=True)])[0]
    assert all(len(output.sources) == output.accepted for output in outputs)
    counts = {name: sum(own.accepted) for name, own in outputs[-1].stats.sources.items()}
    assert Counter(name for o in outputs for name in o.sources) == Counter(counts)
    [fixed] = run(executor(), [request([1, 2, 3, 1, 2], 60)]).values()
    assert fixed[-1].stats.accepted > 0
    assert fixed[-1].stats.sources is None
    assert not any(output.sources for output in fixed)


def test_counts_are_added_by_depth():
    first, second = SourceCounts((3, 2), (2,), (1,), 0.5), SourceCounts((1,), (1, 1), (1, 1), 1.0)
    assert first + second == SourceCounts((4, 2), (3, 1), (2, 1), 1.5)
    assert (first + second).calibration == 0.5
    assert SourceCounts((1,), (1,)).calibration is None
    mixed = total([{"context": first}, {"context": second, "recycling": second}])
    assert mixed == {"context": first + second, "recycling": second}
    assert total([{"context": first}, None]) is None


def test_a_fed_window_keeps_the_sources_of_its_tree():
    shared, window = SharedTrees(100), LookaheadWindow(LookaheadConfig(3, 3, 2), [8, 9, 8])
    tree = shared.tree([1, 2], SamplingParams(), PROPOSERS[:-1], True)
    drafter = TreeDrafter(tree, shared, 64, 20, window)
    chosen = Draft((8, 5), (0, 1), values=(0.9, 0.4), sources=(0, PROPOSERS.index("recycling")))
    drafter.plan(chosen, with_window=True)
    planned = drafter.propose()
    named = {planned.tokens_to(node): planned.proposers((node,)) for node in range(1, planned.size)}
    assert (named[8,], named[8, 5]) == (("context",), ("recycling",))
    others = [
        node for node in range(1, planned.size) if planned.tokens_to(node) not in ((8,), (8, 5))
    ]
    assert set(planned.proposers(others)) == {"window"}
    assert {planned.values[node - 1] for node in others} == {0.0}


def test_a_memory_is_forgotten_kept_and_changed():
    own, asked = executor(nodes=6, sources=("requests",)), [request([1, 2, 3], 40, adaptive=True)]
    first = run(own, asked)[0]
    again = run(own, asked)[0]
    assert fed(again) > fed(first) == 3 + 39  # nothing to draft from, then its own output
    memory = DraftMemory()
    own.use_memory(memory)
    assert fed(run(own, asked)[0]) == fed(first)
    own.use_memory(DraftMemory(DraftOptions(sources=("context",), nodes=2)))
    assert set(run(own, asked)[0][-1].stats.sources) == {"context"}
    own.use_memory(memory)
    assert fed(run(own, asked)[0]) == fed(again)
    own.use_memory(DraftMemory())  # with the executor's own options again
    outputs = run(own, asked)[0]
    assert fed(outputs) == fed(first)
    assert tokens_of(outputs) == tokens_of(first)


def test_a_corpus_is_in_every_memory():
    own, asked = executor(nodes=6, sources=("requests",)), [request([1, 2, 3], 40, adaptive=True)]
    memory, text = DraftMemory(), plain(RULE, [1, 2, 3], 40)
    own.use_memory(memory)
    own.use_memory(DraftMemory())
    own.add_texts([text])
    counts = []
    for one in (memory, DraftMemory()):
        own.use_memory(one)
        assert own.kept_texts() == [tuple(text)]
        counts.append(run(own, asked)[0][-1].stats.accepted)
    assert counts[0] == counts[1] > 0


def test_a_memory_is_not_changed_under_requests_in_flight():
    own = executor()
    own.submit(request([1, 2], 4))
    with pytest.raises(UsageError, match="requests are in flight"):
        own.use_memory(DraftMemory())
    while own.poll():
        pass
    own.use_memory(DraftMemory())


@pytest.fixture(scope="module")
def llm(tiny_llama):
    options = DraftOptions(nodes=4, sources=("requests",))
    with LLM(tiny_llama, lookahead="auto", dtype="float32", draft_options=options) as opened:
        opened.end_ids = frozenset()
        yield opened


def test_an_arm_has_options_of_its_own(llm):
    prompt, sampling = tuple(llm.encode("def read(path):\n    ")), SamplingParams(24)
    arm = EngineArm(llm, "auto", options=DraftOptions(nodes=8, sources=("context", "recycling")))
    run_of_arm = arm.decode([prompt], [sampling])
    plain_run = EngineArm(llm, AUTOREGRESSIVE).decode([prompt], [sampling])
    assert set(run_of_arm.sources) <= {"context", "recycling", "agreement"}
    assert run_of_arm.fed > plain_run.fed
    assert run_of_arm.outputs == plain_run.outputs
    assert plain_run.sources is None
