"""The compiled forward of CPUs: as PyTorch's, and alike for a token alone and in a crowd."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.compiled import (
    CPU,
    KINDS,
    TREE,
    arrays,
    check_alone_and_among_others,
    check_threads,
    config_of,
    filled,
    forward,
    name_of,
    native_of,
    needs,
    needs_compiler,
    pair,
    sequences,
    text,
    trees,
    weights_of,
)
from tests.support.examples import examples
from tests.support.tensors import draw_at
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.models.cpu.library import RowChooser, library
from trtla.runtime.models.cpu.llama import native_problem
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.load import not_compiled
from trtla.runtime.sampling.predict import top_rows
from trtla.runtime.sequence import Feed
from trtla.runtime.threads import num_threads, set_threads

pytestmark = needs_compiler

PAIRED = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_pytorch_computes(kind):
    config = config_of(**KINDS[kind])
    prompts = [text(1, 37, config.vocab_size), text(2, 5, config.vocab_size)]
    draft = Draft(tuple(t % config.vocab_size for t in TREE.tokens), TREE.parents)
    found = []
    for model in pair(config):
        cache, running, first = filled(model, prompts, chunks=3)
        found.append(
            torch.cat([first, forward(model, cache, [Feed.step(s, draft) for s in running])])
        )
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_give_the_very_numbers_of_their_float32(stored):
    config = config_of()
    narrow = native_of(config, weights_of(config, stored), torch.float32)
    wide = ((name, tensor.to(stored).float()) for name, tensor in weights_of(config))
    outputs = [
        filled(model, [text(1, 30)])[2]
        for model in (narrow, native_of(config, wide, torch.float32))
    ]
    assert torch.equal(*outputs)
    assert f"{stored}".removeprefix("torch.") in narrow.arithmetic


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", PAIRED)
def test_tied_embeddings_are_held_once_and_give_the_very_numbers_of_two_copies(dtype, stored):
    needs(dtype)
    config = config_of(tie_word_embeddings=True)
    weights = dict(weights_of(config, stored))
    twice = {**weights, "lm_head.weight": weights["transformer.vocab_embedding.weight"].clone()}
    once = {name: tensor for name, tensor in twice.items() if name != "lm_head.weight"}
    apart = native_of(config_of(), twice.items(), dtype)
    models = [native_of(config, given.items(), dtype) for given in (once, twice)]
    prompts = [text(1, 37), text(2, 5)]
    for model in models:
        assert torch.equal(filled(model, prompts)[2], filled(apart, prompts)[2])
        assert model.weight_bytes == apart.weight_bytes
        assert len(model._panels.matrices) == len(apart._panels.matrices) - 1
    other = {**once, "lm_head.weight": weights["lm_head.weight"]}
    untied = native_of(config, other.items(), dtype)
    assert len(untied._panels.matrices) == len(apart._panels.matrices)
    theirs = LlamaModel(config, arrays(once.items()), torch.float32, CPU)
    ours = native_of(config, once.items(), torch.float32)
    torch.testing.assert_close(
        filled(ours, prompts)[2], filled(theirs, prompts)[2], rtol=1e-4, atol=1e-4
    )


def test_bfloat16_stays_as_close_to_float32_as_pytorch_does():
    needs(torch.bfloat16)
    config, prompts = config_of(), [text(1, 37)]
    exact = filled(native_of(config, weights_of(config, torch.bfloat16), torch.float32), prompts)
    ours, theirs = (filled(m, prompts) for m in pair(config, torch.bfloat16, torch.bfloat16))
    error = (ours[2] - exact[2]).abs().max()
    assert error <= 1.5 * (theirs[2] - exact[2]).abs().max()


@functools.cache
def model_of(dtype):
    return native_of(config_of(), weights_of(config_of(), dtype), dtype)


@pytest.mark.parametrize("dtype", PAIRED)
@examples(40)
@given(st.lists(trees, min_size=1, max_size=3), st.integers(0, 10**6))
def test_every_token_is_the_same_bit_for_bit_alone_and_among_others(dtype, shapes, seed):
    needs(dtype)
    check_alone_and_among_others(model_of(dtype), shapes, seed)


@pytest.mark.parametrize("dtype", PAIRED)
def test_threads_do_not_change_a_bit(dtype):
    needs(dtype)
    check_threads(model_of(dtype))


@pytest.mark.timeout(120, method="thread")
def test_a_step_of_parts_of_prompts_has_no_rows_to_read():
    model, before = model_of(torch.float32), num_threads()
    cache = model.new_cache(64)
    (sequence,) = sequences(cache, [text(1, 90)])
    sequence.drafter.top_rows = 16
    try:
        set_threads(2)
        logits = forward(model, cache, [part := Feed.prompt(sequence, 30, False)])
        assert top_rows([part], logits, model.row_sampler) == [None]
    finally:
        set_threads(before)


def test_any_number_of_sequences_take_part_in_a_step():
    model, together = model_of(torch.float32), 1100
    cache = model.new_cache(together)
    running = sequences(cache, [text(i, 3) for i in range(together)], room=8)
    feeds = [Feed.prompt(sequence, 3, True) for sequence in running]
    crowd = forward(model, cache, feeds).clone()
    groups = [forward(model, cache, feeds[i : i + 100]).clone() for i in range(0, together, 100)]
    assert torch.equal(crowd, torch.cat(groups))


@pytest.mark.parametrize("length", [19, 2_000, 30_000])
def test_a_text_beyond_the_trained_length_is_alike_for_tokens_alone_and_drafted(length):
    """Dynamic scaling: frequencies depend on each token's own text, on nothing beside it."""
    model = native_of(dynamic := config_of(**KINDS["dynamic"]), weights_of(dynamic), torch.float32)
    chain = text(3, 40)
    cache = model.new_cache(length // TOKENS_PER_BLOCK + 3)
    cache.data[:] = 0
    (sequence,) = sequences(cache, [(1,) * length])
    sequence.num_cached = length
    drafted = forward(model, cache, [Feed.step(sequence, Draft.chain(chain))]).clone()
    plain = []
    for token in (3, *chain):
        sequence.output_ids = [token]
        plain.append(forward(model, cache, [Feed.step(sequence, NO_DRAFT)]).clone())
        sequence.num_cached += 1
    assert torch.equal(drafted, torch.cat(plain))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.deep), 0.8])
def test_the_text_is_the_same_for_every_triple_and_batch(tiny_llama, dtype, temperature):
    reason = not_compiled(config_of(), dtype)
    if reason:
        pytest.skip(reason)
    prompts = ["def read(path):", "import os\n", "class Node:", "for i in"]
    sampling = SamplingParams(max_output_len=48, temperature=temperature, seed=5)
    texts = set()
    for triple, batch in [((1, 1, 0), 1), ((7, 7, 7), 1), ((3, 4, 2), 4), ((15, 5, 15), 3)]:
        config = LookaheadConfig(*triple)
        with LLM(tiny_llama, lookahead=config, dtype=dtype, max_batch_size=batch) as llm:
            assert "compiled" in llm.description
            texts.add(tuple(c.output_ids for c in llm.generate(prompts, sampling)))
    assert len(texts) == 1


levels = [-40.0, -3.0, -1.0, 0.0, 0.5, 0.5001, 2.0, 90.0]
scores = st.lists(st.sampled_from(levels), min_size=1, max_size=200)


@examples(300)
@given(
    scores,
    st.sampled_from([0.01, 0.5, 1.0, 3.0]),
    st.sampled_from([0, 1, 2, 5]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_draws_are_those_of_pytorch(found, temperature, top_k, top_p, noise):
    logits = torch.tensor([found])
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = RowChooser().draw(logits.numpy(), 0, params, noise)
    # A token may stand right at the edge of the nucleus: one ulp decides whether it is in.
    edges = [top_p] if top_p == 1.0 else [top_p - 1e-7, top_p, top_p + 1e-7]
    theirs = [draw_at(logits, replace(params, top_p=edge), [noise]).item() for edge in edges]
    assert drawn in theirs


@example([-40.0, -40.0, -3e38, 3e38], 12, 1e60, 0, 1.0, 0.25)
@examples(300)
@given(
    st.lists(st.sampled_from([*levels, 3e38, -3e38]), min_size=1, max_size=200),
    st.integers(0, 40),
    st.sampled_from([5e-324, 1e-310, 1e-45, 1e-39, 1e60, 1e300]),
    st.sampled_from([0, 1, 2, 5]),
    st.sampled_from([1e-9, 0.05, 0.5, 0.9, 1.0]),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_draws_at_extreme_temperatures_are_those_of_pytorch(
    found, hidden, temperature, top_k, top_p, noise
):
    """Every weight is 1 or 0 there: sums are exact, and so is where the nucleus ends."""
    logits = torch.tensor([[*found, *[float("-inf")] * hidden]])
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = RowChooser().draw(logits.numpy(), 0, params, noise)
    assert drawn == draw_at(logits, params, [noise]).item()
    assert drawn < len(found)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.5])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"top_k": 40},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 400, "top_p": 0.8},
        {"min_p": 0.02},
        {"top_p": 0.9, "min_p": 0.02},
    ],
)
def test_draws_from_a_whole_vocabulary_are_those_of_pytorch(temperature, how):
    """Of 49,152 tokens few are worth their noise, which is made for several at a time."""
    logits = torch.randn(4, 49_155, generator=torch.Generator().manual_seed(1)) * 4.0
    params, noise = SamplingParams(temperature=temperature, **how), [0.0, 0.3, 0.62, 0.999]
    chooser = RowChooser()
    drawn = [chooser.draw(logits.numpy(), row, params, noise[row]) for row in range(4)]
    assert drawn == draw_at(logits, params, noise).tolist()


def test_a_filter_that_the_library_lacks_is_applied_without_it(monkeypatch):
    monkeypatch.setattr(library(), "filters", ("temperature", "top_k", "top_p"))
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(2)) * 4.0
    known, lacking = (SamplingParams(temperature=1.7, top_k=9, min_p=least) for least in (0, 0.31))
    chooser, noise = RowChooser(), [0.2, 0.9]
    for params in (known, lacking):
        drawn = [chooser.draw(logits.numpy(), row, params, noise[row]) for row in range(2)]
        assert drawn == draw_at(logits, params, noise).tolist()
    monkeypatch.setattr(chooser, "_draw", lambda *arguments: -2)
    assert chooser.draw(logits.numpy(), 0, known, 0.2) == -2
    assert chooser.draw(logits.numpy(), 0, lacking, 0.2) >= 0


@given(scores)
def test_the_most_probable_token_is_the_first_of_the_largest(found):
    logits = torch.tensor([[0.0] * len(found), found])
    assert RowChooser().most_probable(logits.numpy(), 1) == found.index(max(found))


def test_what_cannot_be_compiled_runs_through_pytorch(monkeypatch):
    config = config_of()
    assert not_compiled(config, "float32") is None
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    assert "TRTLA_COMPILED" in (not_compiled(config, "float32") or "")


@pytest.mark.parametrize(
    ("keys", "dtype", "reason"),
    [
        ({}, torch.float16, "float16"),
        ({"head_size": 14}, torch.float32, "head_size"),
        ({"intermediate_size": 98}, torch.float32, "intermediate_size"),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, torch.float32, "FP8"),
    ],
)
def test_models_that_do_not_fit_are_told_apart(keys, dtype, reason):
    assert reason in (native_problem(config_of(**keys), name_of(dtype)) or "")
