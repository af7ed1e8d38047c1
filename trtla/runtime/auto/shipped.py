"""What steps of the compiled forward cost, before any was seen: shapes of each kind of processor.

Nobody waits for a measurement: real steps correct what is said here (`costs.StepCosts`), the base
within a few steps, and the price of each number of nodes when it is fed.
"""

from __future__ import annotations

from collections.abc import Iterable

from trtla.runtime.costs import CostTable
from trtla.runtime.models.cpu.levels import chosen_level

_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 24, 32, 64, 128)
_SHAPES = {
    "x86-64-v2": (
        *(1.0, 1.39, 1.83, 2.21, 3.08, 3.51, 3.98, 4.36, 5.15, 5.63, 6.12, 6.51),
        *(8.72, 13.0, 17.4, 35.1, 71.6),
    ),
    "x86-64-v3": (
        *(1.0, 1.04, 1.16, 1.31, 1.57, 1.97, 2.22, 2.37, 2.65, 2.91, 3.25, 3.41),
        *(4.46, 6.5, 8.56, 17.2, 35.0),
    ),
    "x86-64-v4": (
        *(1.0, 1.03, 1.05, 1.2, 1.42, 1.68, 1.93, 2.18, 2.46, 2.7, 2.91, 3.1),
        *(4.12, 5.95, 7.8, 15.6, 31.2),
    ),
    "x86-64-v4-vnni": (
        *(1.0, 1.02, 1.05, 1.09, 1.22, 1.37, 1.54, 1.78, 1.97, 2.07, 2.24, 2.37),
        *(3.09, 4.4, 5.73, 11.2, 22.7),
    ),
}
"""Seconds by fed tokens, in those of one token: integer products of a Q4_1 model of 135 M
parameters on two cores of a Zen 4, whose instructions were limited to each level's."""
_FLOAT_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_FLOATS = {
    "x86-64-v3": (1.0, 1.01, 1.1, 1.2, 1.66, 2.2, 2.85, 3.7, 5.1, 6.9, 13.0, 26.0),
    "x86-64-v4-bf16": (1.0, 1.1, 1.25, 1.3, 1.38, 1.5, 1.9, 2.65, 3.6, 4.6, 8.8, 17.6),
}
"""The same of bfloat16 weights, in float32 and in bfloat16 products, on two cores of a Zen 5."""
_AS = {
    "x86-64-v3-vnni": "x86-64-v4-vnni",
    "x86-64-v4-bf16": "x86-64-v4-vnni",
    "x86-64-v4-amx": "x86-64-v4-vnni",
    "armv8-a": "x86-64-v2",
    "armv8.2-a-dotprod": "x86-64-v4-vnni",
}
"""Levels of whose integer products no shape was measured, or the same one: the most like them."""
_BYTES_PER_S = 20e9
"""At which weights are read: a guess that the first steps correct."""


def shipped_costs(weight_bytes: int, compute_type: str) -> CostTable:
    """What forwards of any number of sequences cost on this processor, by their tokens.

    Args:
        weight_bytes: that a forward reads.
        compute_type: of most products: int8, bfloat16 or float32.
    """
    plain = max(weight_bytes, 1) / _BYTES_PER_S
    points = _points(chosen_level().name, compute_type)
    return CostTable.of([(tokens, plain * cost) for tokens, cost in points])


def _points(level: str, compute_type: str) -> Iterable[tuple[int, float]]:
    if compute_type == "int8":
        shape = _SHAPES.get(_AS.get(level, level), _SHAPES["x86-64-v3"])
        return zip(_TOKENS, shape, strict=True)
    floats = _FLOATS["x86-64-v4-bf16" if compute_type == "bfloat16" else "x86-64-v3"]
    return zip(_FLOAT_TOKENS, floats, strict=True)
