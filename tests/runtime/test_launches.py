"""No request waits for Triton's compiler: what serving launches has been launched at the start."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.support.launches import noted_launches
from tests.support.paged import (
    NUM_BLOCKS,
    empty_cache,
    fake_capture,
    filled_cache,
    llama,
    reference_attention,
    sequence_of,
    tree_feed,
)
from tests.support.states import Seen, check_states
from tests.support.toys import Made, tokens_of
from tests.support.toys import request as toy_request
from tests.support.toys import run as run_requests
from tests.support.unchanged import CUDA_SOURCES
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.batch import BatchOutput
from trtla.runtime.models.cuda.graphs import GraphRunner
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig

pytestmark = CUDA_SOURCES

TRIPLE = LookaheadConfig(7, 5, 7)
MOST, OUTPUT = 9000, 12  # contexts of the limits are split, those of the requests are not
LIMITS = ExecutorLimits(3, MOST, MOST, 300, 101, TRIPLE)
LENGTHS = st.one_of(st.integers(1, 150), st.just(390))
COSTS = CostTable.of([(1, 1.0), (100, 1.1)])
HALF = torch.bfloat16

drafters = st.sampled_from(
    [
        {"drafter": DrafterSettings(("none",))},
        {},
        {"adaptive": True},
        {"drafter": DrafterSettings(("prompt-lookup",), gamma=7)},
        {"drafter": DrafterSettings(("ngram", "lookahead"), stop_if_unknown=False)},
    ]
)
sampling = st.sampled_from(
    [
        {},
        {"temperature": 0.7, "seed": 3},
        {"temperature": 1.2, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7},
    ]
)
wanted = st.tuples(LENGTHS, st.integers(1, OUTPUT), drafters, sampling)


@contextmanager
def served(model, limits=LIMITS):
    """A model's executor on the fast path, and the keys of all launches so far."""
    with noted_launches(model) as found:
        cache = model.new_cache(limits.max_batch_size * 14 + 290)
        options = Drafters(limits, DraftOptions(), {})
        yield TorchExecutor(model, cache, limits, options, StepCosts(COSTS)), found


def asked(number, length, count, drafting, settings):
    prompt = [(5 * i + i * i // 7 + number) % 101 for i in range(length)]
    return toy_request(prompt, count, request_id=number, **drafting, **settings)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.deep), HALF], ids=str
)
def test_serving_launches_nothing_that_was_not_launched_at_the_start(dtype):
    with served(llama(dtype)) as (executor, found):
        known = set(found)
        assert {name for name, _ in known} >= {
            "attend_prompts",
            "attend_trees",
            "attend_paths",
            "filter_rows",
        }

        @examples(30)
        @given(st.lists(wanted, min_size=1, max_size=6))
        def serve(requests):
            made = [asked(number, *one) for number, one in enumerate(requests)]
            outputs = run_requests(executor, made)
            assert all(outputs[one.request_id][-1].finish_reason == "length" for one in made)
            assert found == known

        serve()


def test_steps_beyond_every_graph_launch_nothing_new():
    with served(llama(HALF)) as (executor, found):
        known = set(found)
        for size, cached in ((36, 1), (90, 40), (130, 7)):
            feed = tree_feed(sequence_of(cached, size, list(range(20))), tuple(range(size - 1)))
            executor._stepper.forward([feed])
        assert found == known


def test_what_stands_in_for_the_kernels_computes_the_same_texts():
    requests = [asked(n, length, 9, {}, {}) for n, length in enumerate((40, 3, 110))]
    model = llama()
    limits = (3, 150, 200, 300, 101, TRIPLE)
    plain = TorchExecutor(model, model.new_cache(30), ExecutorLimits(*limits))
    expected = run_requests(plain, requests)
    with served(model, ExecutorLimits(*limits)) as (executor, _):
        got = run_requests(executor, requests)
    assert [tokens_of(got[n]) for n in got] == [tokens_of(expected[n]) for n in expected]
    assert executor.stats().accepted == plain.stats().accepted > 0


def test_states_of_graphs_and_pages_are_those_of_pytorchs_operations(monkeypatch):
    """Drafters want them of two texts of three."""
    requests = [asked(n, length, 9, {}, {}) for n, length in enumerate((40, 3, 110))]
    model, limits = llama(), ExecutorLimits(3, 150, 200, 60, 101, TRIPLE)
    plain = TorchExecutor(model, model.new_cache(30), limits)
    texts = {n: tokens_of(found) for n, found in run_requests(plain, requests).items()}
    drafters = {0: Seen(texts[0]), 1: NoDrafter(), 2: Seen(texts[2])}
    monkeypatch.setattr(model, "taps", (1, 0))
    with served(model, limits) as (executor, found):
        assert (known := set(found))  # of graphs
        executor._drafting.drafters = Made(lambda _, one: drafters[one.request_id])
        got = run_requests(executor, requests)
        assert found == known
    assert {n: tokens_of(each) for n, each in got.items()} == texts
    assert executor.stats().accepted > 8
    for number in (0, 2):
        text = (*requests[number].input_ids, *texts[number])
        check_states(model, drafters[number], text, exact=False)


def test_buckets_without_a_graph_launch_what_was_launched_at_the_start(monkeypatch):
    monkeypatch.setattr(GraphRunner, "_graph", lambda *_: None)
    test_serving_launches_nothing_that_was_not_launched_at_the_start(HALF)


def test_layers_share_kernels_whatever_the_address_of_their_scale():
    cache = TensorCache(6, 2, 16, NUM_BLOCKS, torch.float16, torch.device("cpu"), [0.1] * 6)
    with noted_launches(llama(HALF)) as found:
        for layer in range(6):
            launch(cache, layer)
        assert sorted(name for name, _ in found) == ["attend_paths", "attend_trees"]


def launch(cache, layer):
    feeds = [tree_feed(sequence_of(9, 3, list(range(20))), (0, 1))]
    (group,) = StepInputs(Room.of(feeds), NUM_BLOCKS, cache.data.device).fill(feeds).groups
    queries = torch.zeros(3, 4, 16, dtype=HALF)
    group.attend(queries, *cache.layer(layer), cache.scale(layer))


def test_what_runs_at_the_start_writes_to_the_scratch_block_alone():
    model = llama()
    cache = filled_cache(model)
    before = cache.data.clone()
    runner = GraphRunner(model.forward_batch, cache, 3, (35, 51), 213, fake_capture)
    with reference_attention():
        runner.capture_all()
        assert runner.warm_up().shape[1] == 101
    used = NUM_BLOCKS * TOKENS_PER_BLOCK
    assert torch.equal(cache.data[:, :, :used], before[:, :, :used])
    assert not torch.equal(cache.data[:, :, used:], before[:, :, used:])


def test_a_prompt_that_cannot_run_is_a_problem_at_the_start(caplog):
    model = llama()
    cache = filled_cache(model)

    def forward(batch, cache):
        if len(batch.groups) > 1:
            raise ValueError("out of resource: shared memory\nhint")
        return model.forward_batch(batch, cache)

    runner = GraphRunner(forward, cache, 1, (8,), 100, fake_capture)
    with reference_attention():
        runner.capture_all()
        assert runner.captured
        assert runner.warm_up() is None
    assert runner.problem == "out of resource: shared memory"
    assert runner.captured == []
    assert len(caplog.records) == 1


def test_prompts_beside_trees_are_attended_like_the_trees_of_a_graph():
    seen = []

    def forward(batch, cache):
        seen.append([(g.longest, g.context, len(g.sequences)) for g in batch.groups])
        return BatchOutput(torch.zeros(len(batch.rows), 5))

    runner = GraphRunner(forward, empty_cache(), 4, (20,), 100)
    prompt = sequence_of(0, 30, [1, 2], range(30), ())
    trees = [tree_feed(sequence_of(40, 5, list(range(20))), (0, 0, 1, 2)) for _ in range(3)]
    runner(trees)
    runner([Feed.prompt(prompt, 30, True), *trees])
    assert seen == [[(16, 100, 4)], [(30, 0, 1)], [(16, 100, 4)]]
