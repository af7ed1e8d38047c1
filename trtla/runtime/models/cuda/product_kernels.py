"""Triton kernels of matrix products whose rows do not depend on the other rows, to the bit.

Each number is a sum over the inputs in a fixed order: part by part, in steps of BK. The order
depends on the weight alone, not on the number of rows or on a program's share of them.
This file imports Triton: import it only where a model runs on a GPU.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,misc,no-any-return"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "parts"], do_not_specialize_on_alignment=["bias"])
def multiply(
    states: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    parts: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
) -> None:
    """Multiply into out [parts, rows, outputs]; grid (tiles of rows, tiles of outputs, parts).

    The weight is the first operand of the tensor cores: their tiles have 64 rows of it, and few
    tokens suffice. Programs that read the same weights run concurrently. With EVEN, BK divides the
    inputs.
    """
    part = tl.program_id(2)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    output = tl.program_id(1) * BN + tl.arange(0, BN)
    there, inside = row < rows, output < outputs
    stretch = tl.cdiv(inputs, BK * parts) * BK
    start = part * stretch
    end = tl.minimum(start + stretch, inputs)
    lanes = start + tl.arange(0, BK)
    last = tl.minimum(output, outputs - 1)  # what is read for none is not stored
    weights = weight + last[:, None].to(tl.int64) * inputs + lanes[None, :]
    places = states + row[None, :] * inputs + lanes[:, None]
    total = tl.zeros([BN, BM], tl.float32)
    for at in range(start, end, BK):
        if EVEN:
            a = tl.load(weights)
            b = tl.load(places, mask=there[None, :], other=0.0)
        else:
            real = at + tl.arange(0, BK) < inputs
            a = tl.load(weights, mask=real[None, :], other=0.0)
            b = tl.load(places, mask=there[None, :] & real[:, None], other=0.0)
        total = tl.dot(a, b, total)
        weights += BK
        places += BK
    if BIAS:
        added = tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
        total += added[:, None]
    target = out + (part * rows + row[None, :]) * outputs + output[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=there[None, :] & inside[:, None])


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["bias"])
def add_parts(
    sums: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    """Add parts [PARTS, rows, outputs], then the bias; grid (blocks of outputs, rows)."""
    row = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < outputs
    total = tl.load(sums + row * outputs + at, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(sums + (part * rows + row) * outputs + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + at, total.to(out.dtype.element_ty), mask=inside)
