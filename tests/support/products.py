"""Weights with products of a fixed order, and such products under Triton's interpreter."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from trtla.runtime.models.cuda import product_kernels
from trtla.runtime.models.cuda.products import SteadyLinear
from trtla.runtime.models.layers import Linear

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(
    not type(product_kernels.multiply).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
SHAPES_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
SHAPES_1B = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))
"""Weights [out, in] of Llamas: qkv, dense, gate and up, down, and the larger one's head."""


def numbers(*shape, dtype=torch.float16, device=CPU):
    noise = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(shape, generator=noise, device=device).to(dtype)


def steady(outputs, inputs, bias=False, dtype=torch.float16, device=CPU):
    """A random weight, whose products are of a size of about 1."""
    weight = numbers(outputs, inputs, dtype=dtype, device=device).mul_(inputs**-0.5)
    added = numbers(outputs, dtype=dtype, device=device) if bias else None
    return SteadyLinear.of_plain(Linear.of(weight, added, shared=True))


def exact(product, states):
    """What a product is, in float64."""
    out = states.double() @ product.transposed.double()
    return out if product.bias is None else out + product.bias.double()


@contextmanager
def sums_in_order():
    """Make the interpreter sum the inputs in order: NumPy's library would choose another order for
    some tile sizes."""

    def dot(_, a, b, total, *__):
        left, right = (one.data.astype(np.float32) for one in (a, b))
        out = total.data.copy()
        for at in range(left.shape[1]):
            out += left[:, at, None] * right[at]
        return TensorHandle(out, total.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", dot)
        yield
