"""Initial costs of steps, from the processor's instructions and the bytes of the weights.

Nothing waits for a measurement: steps correct these costs (`steps.StepCosts`).
"""

from __future__ import annotations

from typing import NamedTuple

from trtla.formats.config import BLOCK_SIZES, DTYPE_BYTES
from trtla.runtime.costs import CostTable, Mixture
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.levels import chosen_level
from trtla.runtime.threads import num_threads

_TOKENS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
_SHARPNESS = 6.0
"""Sharpness of the bend between steps that wait for weights and those that wait for products."""


class _Rates(NamedTuple):
    """Operations of a thread, or of a GPU, in a second."""

    products: float
    """Products of a weight and a token's number."""
    unpacked: float = float("inf")
    """Weights unpacked for products, once for all tokens."""


_INTEGERS = {
    "x86-64-v2": _Rates(38e9, 300e9),
    "x86-64-v3": _Rates(110e9, 300e9),
    "x86-64-v3-vnni": _Rates(80e9, 50e9),
    "x86-64-v4": _Rates(80e9, 300e9),
    "x86-64-v4-vnni": _Rates(100e9, 50e9),
    "armv8-a": _Rates(20e9, 40e9),
    "armv8.2-a-dotprod": _Rates(60e9, 50e9),
}
"""Rates for weights in blocks: of the slowest processor known of each kind, since drafts that only
seem cheap cost more time than those that seem dear and are tried later."""
_WITH_MINIMUMS, _MINIMUMS_SHARE = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"), 0.8
"""Block types whose minimums take a share of the products."""
_IN_8_BITS, _IN_8_BITS_SHARE = ("Q8_0", "IQ4_NL", "IQ4_XS"), 0.5
"""Block types whose products take twice as long where no instruction adds four of them."""
_IN_PAIRS = ("x86-64-v3", "x86-64-v4")
_AS_VNNI = ("x86-64-v4-bf16", "x86-64-v4-amx")
_BFLOAT16, _FLOAT32 = _Rates(48e9), _Rates(30e9)
_TORCH, _GPU = _Rates(25e9), _Rates(8e13)
_THREAD_READS, _CPU_READS, _GPU_READS = 14e9, 80e9, 2e12
"""Bytes of weights in a second: of one thread, of all of a CPU's, of a GPU."""
_TORCH_S, _GPU_S = 3e-3, 3e-4
"""Seconds of a step besides weights and products."""
_LEAST_S = 1e-5


def shipped_costs(
    weight_bytes: int | None,
    weight_type: str,
    device: Device,
    integers: bool | None,
    mixture: Mixture | None = None,
) -> CostTable:
    """Estimate forwards of any number of sequences here, by their tokens.

    Args:
        weight_bytes: read by a forward of one token; None: unknown.
        integers: True if products are of integers; None: the forward is not compiled.
        mixture: of experts; None: each token reads the same weights.
    """
    size = weight_bytes or 1
    weights = size / _bytes_each(weight_type)
    threads = 1 if device.type == "cuda" else num_threads()
    rates, more_s = _rates(weight_type, device, integers)
    fastest = _GPU_READS if device.type == "cuda" else min(threads * _THREAD_READS, _CPU_READS)
    read = max(size / fastest, _LEAST_S)
    unpack, each = weights / threads / rates.unpacked, weights / threads / rates.products
    growth = {n: 1.0 if mixture is None else mixture.growth(n) for n in _TOKENS}
    return CostTable.of(
        [(n, more_s + _bent(read * growth[n], unpack * growth[n] + n * each)) for n in _TOKENS]
    )


def _bent(first: float, second: float) -> float:
    """Return about the larger of two times."""
    most, least = max(first, second), min(first, second)
    return float(most * (1.0 + (least / most) ** _SHARPNESS) ** (1.0 / _SHARPNESS))


def _rates(weight_type: str, device: Device, integers: bool | None) -> tuple[_Rates, float]:
    if device.type == "cuda":
        return _GPU, _GPU_S
    if integers is None:
        return _TORCH, _TORCH_S
    level = chosen_level().name
    if not integers:
        return (_BFLOAT16 if level in _AS_VNNI and weight_type != "float32" else _FLOAT32), 0.0
    name = "x86-64-v4-vnni" if level in _AS_VNNI else level
    rates = _INTEGERS.get(name, _INTEGERS["x86-64-v3"])
    share = _MINIMUMS_SHARE if weight_type in _WITH_MINIMUMS else 1.0
    if name in _IN_PAIRS and weight_type in _IN_8_BITS:
        share = _IN_8_BITS_SHARE
    return rates._replace(products=share * rates.products), 0.0


def _bytes_each(weight_type: str) -> float:
    inputs, nbytes = BLOCK_SIZES.get(weight_type, (1, DTYPE_BYTES.get(weight_type, 2)))
    return nbytes / inputs
