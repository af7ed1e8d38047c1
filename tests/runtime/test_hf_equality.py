"""The torch executor against Hugging Face's own `generate`, in float32 on real small models."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.models import VARIANTS, named
from tests.support.real_models import folder_and_model, generated, open_llm, prompts_for
from trtla import LookaheadConfig, SamplingParams

COUNT = 24
NAMES = named([v for v in VARIANTS if v.weights == "safetensors"])


@functools.cache
def shared_llm(batch):
    """One engine with a triple above every other, for tests of many triples."""
    return open_llm("gqa", (9, 8, 9), max_batch_size=batch)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_equals_generate_for_every_kind_of_model(name):
    prompts = prompts_for(name, 4)
    with open_llm(name, (5, 4, 5)) as llm:
        texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
    assert [t.output_ids for t in texts] == [generated(name, p, COUNT) for p in prompts]


triples = st.tuples(st.integers(1, 9), st.integers(2, 8), st.integers(0, 9))


@examples(25, suppress_health_check=list(HealthCheck))
@given(st.lists(triples, min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 9))
def test_01_greedy_text_equals_generate_for_every_triple_batch_and_order(own, batch, seed):
    prompts = prompts_for(seed, len(own))
    order = random.Random(seed).sample(range(len(own)), len(own))
    texts = shared_llm(batch).generate(
        [prompts[i] for i in order],
        SamplingParams(max_output_len=COUNT),
        [LookaheadConfig(*own[i]) for i in order],
    )
    for place, index in enumerate(order):
        assert texts[place].output_ids == generated("gqa", prompts[index], COUNT)


def test_drafts_are_accepted_on_the_real_model():
    """Otherwise the equalities above would say little."""
    with open_llm("gqa", (7, 5, 7)) as llm:
        texts = llm.generate(prompts_for(1, 6), SamplingParams(max_output_len=80))
    assert sum(t.stats.accepted for t in texts) > 10


@examples(15, suppress_health_check=list(HealthCheck))
@given(
    triples,
    st.integers(0, 10**9),
    st.sampled_from([0.4, 1.0]),
    st.sampled_from([0, 5]),
    st.sampled_from([1.0, 0.8]),
)
def test_24_sampled_text_is_the_same_with_and_without_lookahead(triple, seed, heat, top_k, top_p):
    params = SamplingParams(COUNT, heat, top_k, top_p, seed)
    prompts, llm = prompts_for(seed, 3), shared_llm(2)
    ahead = llm.generate(prompts, params, LookaheadConfig(*triple))
    plain = llm.generate(prompts, params, LookaheadConfig(1, 1, 0))
    assert [t.output_ids for t in ahead] == [t.output_ids for t in plain]
    assert all(t.stats.tokens_per_step == 1.0 for t in plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_runs(dtype):
    with open_llm("gqa", (4, 4, 4), dtype=dtype) as llm:
        (text,) = llm.generate([prompts_for(3, 1)[0]], SamplingParams(max_output_len=COUNT))
    assert len(text.output_ids) == COUNT


def test_margins_are_the_top_two_logits_apart():
    prompt = prompts_for(5, 1)[0]
    _, model = folder_and_model("gqa")
    with open_llm("gqa", (5, 4, 5)) as llm:
        (text,) = llm.generate([prompt], SamplingParams(max_output_len=COUNT), margins=True)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *text.output_ids]])).logits[0, len(prompt) - 1 : -1]
    top = logits.topk(2).values
    assert torch.tensor(text.margins) == pytest.approx(top[:, 0] - top[:, 1], abs=1e-4)


def test_long_prompts_in_chunks(monkeypatch):
    import trtla.runtime.loop.scheduler as scheduler

    monkeypatch.setattr(scheduler, "MAX_CHUNK", 16)
    prompts = prompts_for(8, 3, longest=100)
    with open_llm("gqa", (5, 4, 5)) as llm:
        texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
    assert [t.output_ids for t in texts] == [generated("gqa", p, COUNT) for p in prompts]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_cuda_gives_the_cpus_text_in_float32_and_runs_in_half(dtype):
    prompts = prompts_for(11, 4)
    with open_llm("gqa", (5, 4, 5), device="cuda", dtype=dtype) as llm:
        texts = llm.generate(prompts, SamplingParams(max_output_len=COUNT))
    assert all(len(t.output_ids) == COUNT for t in texts)
    if dtype == "float32":
        assert [t.output_ids for t in texts] == [generated("gqa", p, COUNT) for p in prompts]
