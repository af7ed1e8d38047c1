"""The choice of the weights that are multiplied in a fixed order, so that no draft changes a text.

A draft changes the number of tokens of a step, and in 16 bits cuBLAS' order of sums may depend on
it. A test multiplies weights of each shape by every number of tokens that graphs have. If a row
differs from the same row alone, `SteadyLinear` replaces cuBLAS for that shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from trtla.runtime.models.cuda.products import MOST_ROWS, SteadyLinear, plain_of
from trtla.runtime.models.layers import Linear

HEAD = "lm_head"
"""Name of the product whose numbers are not rounded to 16 bits."""
_HALF = (torch.float16, torch.bfloat16)
_COMPARED = 64
"""Rows that are multiplied alone; larger products repeat them."""
_ROUNDING = 0.02
"""Largest accepted difference of two products in 16 bits, as a share of their norm."""

Product = Callable[[Tensor], Tensor]


class SteadyChoice:
    """The choice of a product for each of a model's weights, by a test of each shape's first one.

    Args:
        counts: tokens that a step may feed, padding included.
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self._counts = sorted(count for count in {*counts} if count <= MOST_ROWS)
        self._steady: dict[tuple[object, ...], bool] = {}

    @property
    def steady(self) -> tuple[str, ...]:
        """Names of the products that have a fixed order."""
        return tuple(dict.fromkeys(str(key[0]) for key, found in self._steady.items() if found))

    def __call__(self, name: str, now: Linear) -> Linear:
        """Return the product to use for a weight of this name."""
        plain = plain_of(now)
        weight = plain.transposed
        if weight is None or weight.dtype not in _HALF or not weight.t().is_contiguous():
            return plain
        key = (name, *weight.shape, plain.bias is None)
        if key not in self._steady:
            self._steady[key] = needs_order(plain, self._counts, wide=name == HEAD)
        return SteadyLinear.of_plain(plain) if self._steady[key] else plain


@torch.inference_mode()
def needs_order(plain: Linear, counts: Sequence[int], *, wide: bool) -> bool:
    """Return True if rows of a product depend on their number, and a fixed order prevents it.

    Args:
        wide: True to test the product with float32 results.
    """
    assert plain.transposed is not None
    steady, device = SteadyLinear.of_plain(plain), plain.transposed.device
    noise = torch.Generator(device).manual_seed(0)
    shape = (_COMPARED, len(plain.transposed))
    states = torch.randn(shape, generator=noise, device=device).to(plain.transposed.dtype)
    now, then = (plain.wide, steady.wide) if wide else (plain, steady)
    with torch.cuda.device_of(states):  # type: ignore[no-untyped-call]
        return rows_differ(now, states, counts) and _works(then, now, states, counts)


def rows_differ(product: Product, states: Tensor, counts: Sequence[int]) -> bool:
    """Return True if a row among any of these numbers of rows has other bits than alone.

    Numbers that memory has no room for are skipped, as are their graphs.
    """
    try:
        alone = torch.cat([product(row) for row in torch.split(states, 1)])
        return any(_differ(product, states, alone, count) for count in counts)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False


def _differ(product: Product, states: Tensor, alone: Tensor, count: int) -> bool:
    repeated = states.repeat(-(-count // len(states)), 1)
    parts = torch.split(product(repeated[:count]), len(alone))
    return not all(torch.equal(part, alone[: len(part)]) for part in parts)


def _works(steady: Product, plain: Product, states: Tensor, counts: Sequence[int]) -> bool:
    """Return True if the kernels run here, agree with cuBLAS, and rows do not differ."""
    try:
        found, wanted = steady(states).float(), plain(states).float()
        near = bool((found - wanted).norm() <= _ROUNDING * wanted.norm())
        return near and not rows_differ(steady, states, counts)
    except Exception:  # of Triton, its compiler or the driver: cuBLAS is right too
        return False
