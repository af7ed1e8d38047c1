"""Launches of matrix products on CUDA whose rows have the same bits alone and among others.

Tiles and parts are chosen here; `product_kernels` has the Triton kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from trtla.runtime.models.layers import Linear

MOST_ROWS = 512
"""Most rows of a generation step's product; larger products are prompts', which cuBLAS multiplies
faster."""
_OUTPUTS, _INPUTS = 64, 128  # of a program, and of a step of its sums
_TILES = (16, 32, 64, 128)  # rows of a program
_PROGRAMS = 128
"""Programs that a launch should have: about one for each multiprocessor of a large GPU."""
_LEAST_STEPS, _MOST_PARTS = 4, 8
_STAGES = 4  # of a pipeline that reads ahead
_ADDED = 1024  # outputs of a program that adds parts


class SteadyLinear(Linear):
    """A weight whose product has the same bits for a row alone and among up to `MOST_ROWS` rows."""

    __slots__ = ()

    def __call__(self, states: Tensor) -> Tensor:
        if not 0 < len(states) <= MOST_ROWS:
            return super().__call__(states)
        return self._product(states, states.dtype)

    def wide(self, states: Tensor) -> Tensor:
        if not 0 < len(states) <= MOST_ROWS:
            return super().wide(states)
        return self._product(states, torch.float32)

    @classmethod
    def of_plain(cls, plain: Linear) -> SteadyLinear:
        """Return a steady product of the same weight, without a copy."""
        return cls(plain.packed, plain.transposed, plain.bias)

    @property
    def plain(self) -> Linear:
        """The cuBLAS product of the same weight."""
        return Linear(self.packed, self.transposed, self.bias)

    def _product(self, states: Tensor, dtype: torch.dtype) -> Tensor:
        assert self.transposed is not None
        return multiply(states.contiguous(), self.transposed.t(), self.bias, dtype)


def plain_of(product: Linear) -> Linear:
    """Return the product without a fixed order of sums."""
    return product.plain if isinstance(product, SteadyLinear) else product


def multiply(states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return states [rows, in] times a weight [out, in], both contiguous, rounded once."""
    from trtla.runtime.models.cuda import product_kernels

    (rows, inputs), outputs = states.shape, len(weight)
    parts, tile, gpu = _parts(outputs, inputs), _tile(rows), _gpu(states.device)
    out = sums = states.new_empty((rows, outputs), dtype=dtype)
    if parts > 1:
        sums = states.new_empty((parts, rows, outputs), dtype=torch.float32)
    product_kernels.multiply[(-(-rows // tile), -(-outputs // _OUTPUTS), parts)](
        states,
        weight,
        weight if bias is None else bias,
        sums,
        rows,
        outputs,
        inputs,
        parts,
        BM=tile,
        BN=_OUTPUTS,
        BK=_INPUTS,
        BIAS=bias is not None and parts == 1,
        EVEN=inputs % _INPUTS == 0,
        num_warps=gpu.warps(tile),
        num_stages=gpu.stages(tile),
    )
    if parts > 1:
        product_kernels.add_parts[(-(-outputs // _ADDED), rows)](
            sums,
            weight if bias is None else bias,
            out,
            rows,
            outputs,
            PARTS=parts,
            BLOCK=_ADDED,
            BIAS=bias is not None,
            num_warps=4,
        )
    return out


def _parts(outputs: int, inputs: int) -> int:
    """Return the parts of a sum, by the weight's shape alone: enough programs, none too short."""
    wanted = min(
        _MOST_PARTS,
        _PROGRAMS // -(-outputs // _OUTPUTS),
        inputs // (_INPUTS * _LEAST_STEPS),
    )
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1


def _tile(rows: int) -> int:
    return next((tile for tile in _TILES if tile >= rows), _TILES[-1])


@dataclass(frozen=True, slots=True)
class Gpu:
    """The properties of a GPU that determine tiles.

    Args:
        shared: bytes of shared memory of a program.
        major: major number of the compute capability.
    """

    shared: int
    major: int

    @property
    def reads_shared(self) -> bool:
        """True if tensor cores read operands from shared memory, as on Hopper and B200."""
        return self.major in (9, 10, 11)

    def warps(self, tile: int) -> int:
        """Return the warps of a program of `tile` rows, with which its sums fit into registers."""
        return 4 if self.reads_shared or tile < _TILES[-1] else 8

    def stages(self, tile: int) -> int:
        """Return the pipeline stages whose weights and states fit into shared memory."""
        held = self.shared // ((_OUTPUTS + tile) * _INPUTS * 2)
        return min(_STAGES, held if self.reads_shared else held + 1)


@lru_cache(maxsize=16)
def _gpu(device: torch.device) -> Gpu:
    if device.type != "cuda":  # interpreted
        return Gpu(0, 0)
    from triton.runtime import driver  # type: ignore[import-not-found,import-untyped,unused-ignore]

    index = torch.cuda.current_device() if device.index is None else device.index
    shared = int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
    return Gpu(shared, torch.cuda.get_device_capability(device)[0])
