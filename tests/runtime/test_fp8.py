"""FP8 on the torch executor: products, dequantised weights, the FP8 cache, lookahead's equality.

References are transformers' own forwards with values rounded to FP8 by hand.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import DynamicCache

from tests.support.examples import examples
from tests.support.models import make_model
from tests.support.real_models import (
    CPU,
    PROMPTS,
    VARIANT,
    _linear,
    checkpoint,
    greedy_text,
    load_model,
    needs_products,
    open_fp8,
)
from tests.support.second_device import AWAY, Elsewhere, SecondDevice
from trtla import LookaheadConfig, SamplingParams
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.tensors import E4M3_MAX
from trtla.formats.torch_tensors import E4M3, dequantize
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.kv_cache import block_bytes
from trtla.runtime.models.layers import Fp8Pair, fp8_products
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed, Sequence

COUNT = 24


def fake(values, scale):
    """Rounded to FP8 and back, by a search for the nearest number."""
    numbers = torch.arange(256, dtype=torch.uint8).view(E4M3).double()
    numbers = numbers[~numbers.isnan()].unique()
    wanted = (values.double() / scale).clamp(-E4M3_MAX, E4M3_MAX).contiguous()
    place = torch.searchsorted(numbers, wanted).clamp(1, len(numbers) - 1)
    low, high = numbers[place - 1], numbers[place]
    return (torch.where(wanted - low < high - wanted, low, high) * scale).to(values.dtype)


def scales(kind):
    """Scale by TensorRT-LLM's name of its linear or layer."""
    suffix = f".{kind}_scaling_factor"
    tensors = Checkpoint.open(checkpoint()[1]).full_tensors()
    return {n.removesuffix(suffix): t.item() for n, t in tensors if n.endswith(suffix)}


@functools.cache
def reference_model(activations):
    """transformers' model with weights, and on request linears' inputs, rounded to FP8."""
    model = make_model(VARIANT)
    model.load_state_dict(checkpoint()[0].state_dict())
    weights, inputs = scales("weights"), scales("activation")
    names = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "dense"}
    names |= {"gate": "fc", "up": "gate", "down": "proj"}
    for path, module in model.named_modules():
        if not path.endswith("_proj"):
            continue
        _, _, layer, block, linear = path.split(".")
        block = "attention" if block == "self_attn" else "mlp"
        key = f"transformer.layers.{layer}.{block}.{names[linear.removesuffix('_proj')]}"
        with torch.no_grad():
            module.weight.copy_(fake(module.weight, weights[key]))
        if activations:
            scale = inputs[key]
            module.register_forward_pre_hook(lambda _, args, s=scale: (fake(args[0], s),))
    return model


class RoundedCache(DynamicCache):
    """Rounds what is cached."""

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        scale = scales("kv_cache")[f"transformer.layers.{layer_idx}.attention"]
        rounded = (fake(part, scale) for part in (key_states, value_states))
        return super().update(*rounded, layer_idx, *args, **kwargs)


@functools.cache
def reference(prompt, kv_cache):
    cache = RoundedCache() if kv_cache else None
    return greedy_text(reference_model(activations=False), prompt, COUNT, past_key_values=cache)


def logits_of(model, prompt):
    """A prompt's logits at all places."""
    cache = model.new_cache(-(-len(prompt) // TOKENS_PER_BLOCK))
    sequence = Sequence(Request(0, prompt), LookaheadConfig(1, 1, 0), SimpleNamespace())
    sequence.blocks = tuple(range(cache.pool.num_blocks))
    feed = Feed(sequence, prompt, tuple(range(len(prompt))))
    return model.run([feed], cache).logits


# The whole model.


@pytest.mark.parametrize("kv_cache", [False, True])
def test_greedy_text_equals_generate_on_rounded_weights_and_cache(kv_cache):
    with open_fp8(kv_cache) as llm:
        texts = llm.generate(list(PROMPTS), SamplingParams(max_output_len=COUNT))
        cache = ", FP8 K/V cache" if kv_cache else ""
        expected = f"FP8 weights dequantised at load{cache}"
        assert llm.description.startswith(("torch on cpu, float32, ", "cpu, float32, "))
        assert expected in llm.description
    assert [t.output_ids for t in texts] == [reference(p, kv_cache) for p in PROMPTS]
    assert sum(t.stats.accepted for t in texts) > 5


@pytest.mark.parametrize("products", [False, True])
def test_logits_are_those_of_rounded_weights_and_inputs(products):
    expected = reference_model(activations=products)
    for prompt in PROMPTS:
        with torch.no_grad():
            wanted = expected(torch.tensor([prompt])).logits[0]
        found = logits_of(load_model(products), prompt)
        # An input at the border of two FP8 numbers may fall to either side.
        assert (found - wanted).abs().max() < (0.05 if products else 1e-4)
        assert (found - wanted).abs().median() < 1e-4


@pytest.mark.parametrize("products", [False, True])
def test_weights_and_scales_are_moved_to_the_models_device(products):
    expected = logits_of(load_model(products, kv_cache=True), PROMPTS[1])
    with SecondDevice():
        found = logits_of(load_model(products, kv_cache=True, device=AWAY), PROMPTS[1])
    assert isinstance(found, Elsewhere)
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


def test_rounding_the_cache_changes_logits_a_little():
    plain, rounded = (logits_of(load_model(False, kv), PROMPTS[3]) for kv in (False, True))
    assert 0 < (plain - rounded).abs().max() < 0.5


triples = st.tuples(st.integers(1, 7), st.integers(2, 6), st.integers(0, 7))


@functools.cache
def shared_llm(kv_cache):
    return open_fp8(kv_cache)


@examples(20, suppress_health_check=list(HealthCheck))
@given(st.lists(triples, min_size=4, max_size=4), st.booleans(), st.booleans())
def test_lookahead_never_changes_the_text(own, kv_cache, sampled):
    params = SamplingParams(max_output_len=COUNT, temperature=0.7 if sampled else 0.0, seed=3)
    llm = shared_llm(kv_cache)
    plain = llm.generate(list(PROMPTS), params, LookaheadConfig(1, 1, 0))
    ahead = llm.generate(list(PROMPTS), params, [LookaheadConfig(*triple) for triple in own])
    assert [t.output_ids for t in ahead] == [t.output_ids for t in plain]


def test_what_an_executor_computes_in():
    names = {(p, kv): load_model(p, kv, torch.bfloat16).arithmetic for p in (0, 1) for kv in (0, 1)}
    assert names == {
        (0, 0): "bfloat16, FP8 weights dequantised at load",
        (0, 1): "bfloat16, FP8 weights dequantised at load, FP8 K/V cache",
        (1, 0): "FP8 matrix products, bfloat16 activations",
        (1, 1): "FP8 matrix products, bfloat16 activations, FP8 K/V cache",
    }


def test_products_need_a_gpu_that_has_them_and_sizes_of_16(monkeypatch):
    config, cuda = Checkpoint.open(checkpoint()[1]).config, torch.device("cuda")
    capability = {"value": (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability["value"])
    assert fp8_products(config, torch.bfloat16, cuda)
    assert not fp8_products(config, torch.float32, cuda)
    assert not fp8_products(config, torch.bfloat16, CPU)
    odd = config.model_copy(update={"intermediate_size": 100})
    assert not fp8_products(odd, torch.bfloat16, cuda)
    capability["value"] = (8, 6)
    assert not fp8_products(config, torch.bfloat16, cuda)


# The pieces.


def emulated(linear, states):
    """The product of rounded inputs and dequantised weights in float64."""
    rounded = fake(states.double().cpu(), linear.input_scale.item())
    weight = dequantize(linear.weight.cpu(), linear.weight_scale.cpu(), torch.float64)
    out = rounded @ weight.t()
    return out if linear.bias is None else out + linear.bias.double().cpu()


@needs_products
@examples(40)
@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 2**30)
)
def test_a_product_is_that_of_the_rounded_numbers(tokens, inner, outer, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(16 * outer, generator=generator) if biased else None
    states = torch.randn(tokens, 16 * inner, generator=generator) * 4  # some beyond the range
    linear = _linear(16 * inner, 16 * outer, bias)
    torch.testing.assert_close(linear(states).double(), emulated(linear, states), atol=1e-4, rtol=0)


@needs_products
@pytest.mark.parametrize("input_scale", [0.02, 0.05])
def test_a_pair_is_its_two_products(input_scale):
    first, second = _linear(32, 16), _linear(32, 48, input_scale=input_scale)
    noise = torch.Generator().manual_seed(1)
    pair, states = Fp8Pair.of(first, second), torch.randn(3, 32, generator=noise)
    assert pair.same_scale == (input_scale == 0.02)
    for found, linear in zip(pair(states), (first, second), strict=True):
        assert torch.equal(found, linear(states))


def test_the_cache_gives_back_rounded_values_wherever_they_are_moved():
    model = load_model(False, kv_cache=True)
    cache, layer = model.new_cache(2), 1
    assert (model.cache_type, cache.data.element_size()) == ("float8_e4m3fn", 1)
    scale = scales("kv_cache")[f"transformer.layers.{layer}.attention"]
    noise = torch.Generator().manual_seed(2)
    keys, values = torch.randn(2, 3, 2, 16, generator=noise) * 40 * scale
    cache.write(layer, torch.tensor([5, 9, 40]), keys, values)
    cache.move(torch.tensor([9, 40]), torch.tensor([6, 7]))
    for stored, wanted in zip(cache.layer(layer), (keys, values), strict=True):
        found = dequantize(stored[5:8].view(E4M3), cache.scale(layer), torch.float32)
        torch.testing.assert_close(found, fake(wanted, scale), atol=0, rtol=1e-6)


def test_a_cache_that_is_not_fp8_has_no_scale():
    cache = load_model(False).new_cache(1)
    assert type(cache) is TensorCache
    assert cache.scale(0) is None
    assert cache.data.dtype == torch.float32


def test_an_fp8_cache_holds_four_times_the_tokens_of_float32():
    config = Checkpoint.open(checkpoint()[1]).config
    wide, narrow = (block_bytes(config, dtype) for dtype in ("float32", "float8_e4m3fn"))
    assert wide == 4 * narrow


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cuda_products_are_those_of_the_rounded_numbers(dtype):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the GPU has no FP8 products")
    linear = _linear(64, 96, torch.ones(96, dtype=dtype, device="cuda"), dtype, "cuda")
    states = torch.randn(5, 64, dtype=dtype, device="cuda")
    found, wanted = linear(states).double().cpu(), emulated(linear, states)
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.02)


@pytest.mark.gpu
def test_cuda_gives_the_cpus_text_in_float32_and_runs_products():
    with open_fp8(True, device="cuda", dtype="float32") as llm:
        texts = llm.generate(list(PROMPTS), SamplingParams(max_output_len=COUNT))
    assert [t.output_ids for t in texts] == [reference(p, True) for p in PROMPTS]
    with open_fp8(True, device="cuda", dtype="bfloat16") as llm:
        texts = llm.generate(list(PROMPTS), SamplingParams(max_output_len=COUNT))
        if torch.cuda.get_device_capability() >= (8, 9):
            assert "FP8 matrix products" in llm.description
    assert all(len(t.output_ids) == COUNT for t in texts)
