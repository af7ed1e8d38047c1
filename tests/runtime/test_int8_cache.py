"""The int8 K/V cache of the compiled forward: near the float one, and alike for every draft."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiled import (
    KINDS,
    check_alone_and_among_others,
    check_threads,
    config_of,
    filled,
    forward,
    native_of,
    needs,
    needs_compiler,
    text,
    trees,
    weights_of,
)
from tests.support.encoder_decoders import folder
from tests.support.examples import examples
from tests.support.gguf_models import TIED, model_of, write_gguf
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import TrtlaError, UsageError
from trtla.formats.model import Model
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.device import CPU, Device
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.models.kv_cache import CacheNeed, block_bytes, cache_blocks
from trtla.runtime.models.load import check_cache_dtype
from trtla.runtime.sequence import Feed
from trtla.settings.lookahead import AUTOREGRESSIVE

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def q4(tmp_path_factory):
    longer = replace(TIED, keys={**TIED.keys, "max_position_embeddings": 128})
    return write_gguf(model_of(longer), tmp_path_factory.mktemp("q4") / "model.gguf", "Q4_1")


@functools.cache
def model_in(stored, kind="gqa"):
    needs(stored)
    config = config_of(**KINDS[kind])
    return native_of(config, weights_of(config, stored), stored, int8_cache=True)


def rounded(numbers):
    """Each row of [..., size] as the cache holds it: in 127 steps of its largest number."""
    scale = numbers.abs().amax(-1, keepdim=True) / 127
    return (numbers / scale).round() * scale


def held(cache, size):
    """The cache's rows [layers x heads, 2, slots, size] as numbers."""
    rows = torch.from_numpy(cache.data)
    scales = rows[..., size:].contiguous().view(torch.float32)
    return rows[..., :size].view(torch.int8).float() * scales


@pytest.mark.parametrize("kind", ["gqa", "mqa-biases", "head-size-128", "head-size-16", "dynamic"])
def test_each_row_holds_a_tokens_keys_rounded_on_their_own(kind):
    config, prompt = config_of(**KINDS[kind]), text(1, 37)
    exact = native_of(config, weights_of(config), torch.float32)
    caches = [filled(model, [prompt]) for model in (exact, model_in(torch.float32, kind))]
    (plain, running, logits), (narrow, _, found) = caches
    slots = plain.table(running[0].blocks).slots[: len(prompt)]
    first = slice(config.num_key_value_heads)  # no attention has come before the first layer's
    numbers = torch.from_numpy(plain.data.view(np.float32))[first, :, slots]
    stored = held(narrow, config.head_size)[first, :, slots]
    steps = numbers.abs().amax(-1, keepdim=True) / 127
    assert ((stored - numbers).abs() <= 0.501 * steps).all()
    assert (stored - rounded(numbers)).abs().max() <= steps.max() * 1.01  # ties may differ
    assert (found - logits).norm() <= 0.03 * logits.norm()
    assert not torch.equal(found, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@examples(40)
@given(st.lists(trees, min_size=1, max_size=3), st.integers(0, 10**6))
def test_every_token_is_the_same_bit_for_bit_alone_and_among_others(dtype, shapes, seed):
    check_alone_and_among_others(model_in(dtype), shapes, seed)


def test_threads_do_not_change_a_bit():
    check_threads(model_in(torch.float32))


def test_moved_drafts_are_read_as_if_they_had_been_fed_there():
    model, prompt = model_in(torch.float32), text(1, 37)
    draft = Draft((7, 8, 9, 10), (0, 0, 2, 3))  # 7 | 8 9 10
    cache, (sequence,), _ = filled(model, [prompt])
    forward(model, cache, [Feed.step(sequence, draft)])
    slots, base = cache.table(sequence.blocks).order, len(prompt)
    cache.move_later((slots[base + place + 1], slots[base + place]) for place in (1, 2, 3))
    cache.move_now()
    sequence.num_cached, sequence.output_ids = base + 4, [3, 8, 9, 10, 11]
    moved = forward(model, cache, [Feed.step(sequence, NO_DRAFT)]).clone()
    assert torch.equal(moved, filled(model, [(*prompt, 3, 8, 9, 10, 11)])[2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_numbers_do_not_pass_for_an_answer(value):
    config = config_of()
    weights = dict(weights_of(config))
    weights["transformer.layers.0.attention.qkv.weight"][-3, 5] = value
    model = native_of(config, weights.items(), torch.float32, int8_cache=True)
    assert filled(model, [text(1, 20)])[2].isnan().all()


def test_zeros_stay_zeros():
    config = config_of()
    weights = dict(weights_of(config))
    weights["transformer.layers.0.attention.qkv.weight"][-64:] = 0.0  # those of the values
    models = [
        native_of(config, weights.items(), torch.float32, int8_cache=int8) for int8 in (False, True)
    ]
    exact, found = (filled(model, [text(1, 20)])[2] for model in models)
    assert (found - exact).norm() <= 0.03 * exact.norm()


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.deep), 0.8])
@pytest.mark.parametrize("quantised", [False, True])
def test_the_text_is_the_same_for_every_triple_and_batch(tiny_llama, q4, temperature, quantised):
    prompts = [list(text(seed, 12, 64)) for seed in range(4)]
    sampling = SamplingParams(max_output_len=40, temperature=temperature, seed=5)
    texts = set()
    for triple, batch in [((1, 1, 0), 1), ((7, 7, 7), 1), ((3, 4, 2), 4)]:
        with LLM(
            q4 if quantised else tiny_llama,
            lookahead=LookaheadConfig(*triple),
            dtype="auto" if quantised else "float32",
            kv_cache_dtype="int8",
            max_batch_size=batch,
            block_reuse=batch > 1,
        ) as llm:
            assert "int8 K/V cache, compiled" in llm.description
            for _ in range(1 + (batch > 1)):  # behind kept blocks as well
                texts.add(tuple(tuple(c.output_ids) for c in llm.generate(prompts, sampling)))
    assert len(texts) == 1


def test_it_takes_half_the_memory_of_bfloat16(monkeypatch):
    config, model = config_of(head_size=64), model_in(torch.float32, "head-size-64")
    block = 2 * 2 * config.num_key_value_heads * TOKENS_PER_BLOCK * (64 + 4)
    assert model.new_cache(3).data.nbytes == 3 * block
    monkeypatch.setattr("trtla.runtime.models.kv_cache._free_bytes", lambda device: 5 * block)
    assert block_bytes(config, model.cache_type) == block
    assert cache_blocks([CacheNeed(CPU, block, 5 * TOKENS_PER_BLOCK)], 1) == [5]
    with pytest.raises(TrtlaError, match="memory for 160 cached tokens"):
        cache_blocks([CacheNeed(CPU, block, 5 * TOKENS_PER_BLOCK + 1)], 1)


def test_what_cannot_have_it_is_refused_before_weights_are_read(tiny_llama, monkeypatch):
    engine = Model.at(tiny_llama).open(AUTOREGRESSIVE)
    monkeypatch.setattr(type(engine), "weights", lambda self: pytest.fail("weights were read"))

    def refused(dtype="float32", device="cpu", **keys):
        with pytest.raises(UsageError) as error:
            LLM(tiny_llama, dtype=dtype, device=device, **{"kv_cache_dtype": "int8", **keys})
        return str(error.value)

    assert refused("float16") == (
        "kv_cache_dtype int8 needs the compiled forward of CPUs: there is no arithmetic for "
        "float16\nhint: omit kv_cache_dtype, or use dtype float32"
    )
    assert "kv_cache_dtype is 'fp8'" in refused(kv_cache_dtype="fp8")
    with pytest.raises(UsageError, match="the device is cuda:0") as error:
        check_cache_dtype("int8", engine, "float32", Device("cuda", 0))
    assert "--device cpu" in error.value.hint
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    assert "TRTLA_COMPILED=0 says so" in refused()


def test_models_that_are_never_compiled_are_refused(tiny_llama):
    engine = Model.at(tiny_llama).open(AUTOREGRESSIVE)
    config = engine.config.pretrained_config
    quantization = config.quantization.model_copy(update={"kv_cache_quant_algo": "FP8"})
    fp8 = config.model_copy(update={"quantization": quantization})
    t5 = Model.at(folder("T5")).open(AUTOREGRESSIVE)
    cached = replace(engine, config=engine.config.model_copy(update={"pretrained_config": fp8}))
    for model, reason in ((cached, "the K/V cache is FP8"), (t5, "is an encoder-decoder")):
        with pytest.raises(UsageError, match=reason) as error:
            check_cache_dtype("int8", model, "float32", CPU)
        assert error.value.hint == "omit --kv-cache-dtype"
