"""Matrix products in the layout of the machine, for every number of tokens, type and size."""

from __future__ import annotations

import pytest
import torch

from trtla.runtime.models import layers as linear
from trtla.runtime.models.layers import Linear, LinearPair

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
ON_GPUS = {**TOLERANCE, torch.float16: 2e-3}


def random(*shape, dtype):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_product(out, states, weight, bias):
    expected = states.double() @ weight.double().t()
    expected = expected if bias is None else expected + bias.double()
    error = ON_GPUS[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=error, atol=error * 8)


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_product_is_right_for_any_number_of_tokens(monkeypatch, dtype, large, with_bias, tokens):
    """A large weight takes other ways than a small one."""
    monkeypatch.setattr(linear, "_LARGE_ELEMENTS", 1 if large else 10**9)
    weight, states = random(24, 40, dtype=dtype), random(tokens, 40, dtype=dtype)
    bias = random(24, dtype=dtype) if with_bias else None
    out = Linear.of(weight, bias)(states)
    assert out.shape == (tokens, 24)
    assert_product(out, states, weight, bias)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_pair_gives_both_products(with_bias):
    weights = [random(24, 40, dtype=torch.float32), random(24, 40, dtype=torch.float32).flip(0)]
    biases = [random(24, dtype=torch.float32) if with_bias else None] * 2
    states = random(5, 40, dtype=torch.float32)
    outs = LinearPair.of(weights, biases)(states)
    for out, weight, bias in zip(outs, weights, biases, strict=True):
        assert_product(out, states, weight, bias)


def test_a_large_weight_is_kept_once():
    """Two layouts of a large weight would double the model's memory."""
    sides = 2 * int(linear._LARGE_ELEMENTS**0.5)
    kept = Linear.of(torch.zeros(sides, sides))
    assert (kept.packed is None) != (kept.transposed is None)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_wide_products_are_float32_whatever_the_weights(dtype):
    weight, states = random(24, 40, dtype=dtype), random(3, 40, dtype=dtype)
    out = Linear.of(weight).wide(states)
    assert out.dtype == torch.float32
    expected = states.double() @ weight.double().t()
    error = TOLERANCE[dtype] if dtype != torch.float64 else 1e-6
    torch.testing.assert_close(out.double(), expected, rtol=error, atol=error * 8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cuda_keeps_a_weight_as_it_comes_and_sums_in_float32(dtype):
    weight, states = (random(n, 256, dtype=dtype).cuda() for n in (96, 5))
    kept = Linear.of(weight)
    assert kept.transposed.data_ptr() == weight.data_ptr()
    assert_product(kept(states).cpu(), states.cpu(), weight.cpu(), None)
    expected = states.double() @ weight.double().t()
    torch.testing.assert_close(kept.wide(states).double(), expected, rtol=1e-5, atol=1e-4)
